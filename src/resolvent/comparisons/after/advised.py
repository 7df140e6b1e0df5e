"""Which model each site should use after a run, and what is against a model.

``refit``, ``predict``, ``calibrate`` and ``explain`` use the advised model. A model that was worse on the site's test
rows than the predictions that need no training is advised to nobody, and where a method is named that was not advised,
neither is one that was worse than training alone. Such a model needs an explicit option.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from resolvent.comparisons.judgement.decision_rule import MARGIN
from resolvent.comparisons.judgement.site_judgement import SiteJudgement
from resolvent.comparisons.runs.record import RunRecord
from resolvent.errors import InputError, quote


class SiteModel(NamedTuple):
    """The model of a site.

    Attributes:
        is_shared: whether it is the shared model of a method that has personal models as well.
        against: why it should not be used; empty if nothing is against it.
    """

    method: str
    is_shared: bool = False
    against: str = ""


def models_of_sites(record: RunRecord, method: str | None = None,
                    methods: Sequence[str] = ()) -> dict[str, SiteModel]:
    """Site -> the model that it should use.

    Args:
        record: of a run.
        method: the method of the federation; default: the advised one. Where it is not the advised one, a site uses it
            unless it was worse than training alone.
        methods: the methods of which there are models; default: all of the run.
    """
    labels, alone = methods or [*record.methods], record.alone
    about = None if record.federation is None else record.federation.about
    chosen = method or about or _only(record)
    models = {}
    for name in record.data.parties:
        site = record.judged.get(name)
        use = SiteModel(chosen)
        if site is not None and site.advice is not None and chosen == about:
            has_personal = "personal" in site.facts.evidence.get(chosen, {})
            use = SiteModel(record.use(site) or chosen, site.advice.model == "shared" and has_personal)
        elif site is not None and alone is not None and reason_against(record, site, chosen):
            use = SiteModel(alone)
        if use.method not in labels:  # a site of a federation has not trained it
            use = SiteModel(chosen)
        reason = "" if site is None else reason_against(record, site, use.method, is_advised=True)
        models[name] = use._replace(against=reason)
    return models


def reason_against(record: RunRecord, site: SiteJudgement, method: str, *, is_advised: bool = False) -> str:
    """Why a site should not use its model of a method; empty if nothing is against it.

    Args:
        site: a site of the run.
        is_advised: whether the site was advised to use it: then it is compared only with the predictions that need no
            training.
    """
    losses, alone, baseline = site.facts.losses, record.alone, record.baseline
    if record.decides or baseline is None or baseline not in losses or method not in losses:
        return ""
    loss, base = (math.inf if math.isnan(losses[label]) else losses[label] for label in (method, baseline))
    if loss > (1 + MARGIN) * base:
        return f"on its test rows the model is worse than the {baseline} (loss {loss:.3g} against {base:.3g})"
    own = math.nan if alone is None else losses.get(alone, math.nan)
    if not is_advised and method != alone and loss > own + MARGIN * base:  # never for an own loss that is not known
        return f"on its test rows the model is worse than training alone (loss {loss:.3g} against {own:.3g})"
    return ""


def reasons_against(models: Mapping[str, SiteModel]) -> dict[str, str]:
    """Site -> why none of its models is advised; the other sites are left out."""
    return {site: model.against for site, model in models.items() if model.against}


def nothing_to_use(site: str, reason: str) -> str:
    """The sentence about a site without an advised model."""
    return (f"no model is advised for {site}: {reason}. To use a model nevertheless, name its method: --method METHOD, "
            "or method= in Python")


def chosen_method(record: RunRecord) -> str | None:
    """The method that the federation should run, or the only one; None if none was chosen."""
    if record.federation is not None:
        return record.federation.about
    others = [label for label, method in record.methods.items() if not method.is_bound] or [*record.methods]
    return others[0] if len(others) == 1 else None


def _only(record: RunRecord) -> str:
    method = chosen_method(record)
    if method is None:
        raise InputError("the run chose no method, because it has no training alone, or no test rows: name one with "
                         f"--method, such as {quote(next(m for m in record.methods if m != record.alone))}")
    return method
