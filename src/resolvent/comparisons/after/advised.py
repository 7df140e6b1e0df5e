"""Which model each site should use after a run, and what is against a model.

``refit``, ``predict``, ``calibrate`` and ``explain`` use the advised model. A model that was worse on the site's test
rows than the predictions that need no training is advised to nobody, and where a method is named that was not advised,
neither is one that was worse than training alone. Such a model needs an explicit option.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from resolvent.comparisons.judgement.advice import MARGIN
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


def models_of_sites(summary: Mapping[str, Any], method: str | None = None,
                    methods: Sequence[str] = ()) -> dict[str, SiteModel]:
    """Site -> the model that it should use.

    Args:
        summary: of a run.
        method: the method of the federation; default: the advised one. Where it is not the advised one, a site uses it
            unless it was worse than training alone.
        methods: the methods of which there are models; default: all of the run.
    """
    labels, alone = methods or [*summary["methods"]], summary["alone"]
    federation: dict[str, Any] | None = summary.get("federation")
    about: str | None = None if federation is None else federation["about"]
    chosen = method or about or _only(summary)
    sites = {site["name"]: site for site in summary["sites"]}
    models = {}
    for name in summary["data"]["parties"]:
        site = sites.get(name)
        advice = None if site is None else site["advice"]
        use = SiteModel(chosen)
        if site is not None and advice is not None and chosen == about:
            has_personal = "personal" in site["evidence"].get(chosen, {})
            use = SiteModel(advice["use"], advice["model"] == "shared" and has_personal)
        elif site is not None and alone is not None and reason_against(summary, site, chosen):
            use = SiteModel(alone)
        if use.method not in labels:  # a site of a federation has not trained it
            use = SiteModel(chosen)
        reason = "" if site is None else reason_against(summary, site, use.method, is_advised=True)
        models[name] = use._replace(against=reason)
    return models


def reason_against(summary: Mapping[str, Any], site: Mapping[str, Any], method: str, *,
                   is_advised: bool = False) -> str:
    """Why a site should not use its model of a method; empty if nothing is against it.

    Args:
        site: a site of the summary.
        is_advised: whether the site was advised to use it: then it is compared only with the predictions that need no
            training.
    """
    losses, alone, baseline = site["losses"], summary["alone"], summary["baseline"]
    if summary.get("decides") or baseline not in losses or method not in losses:
        return ""
    loss, base = (float(losses[label] if losses[label] is not None else "inf") for label in (method, baseline))
    if loss > (1 + MARGIN) * base:
        return f"on its test rows the model is worse than the {baseline} (loss {loss:.3g} against {base:.3g})"
    own = losses.get(alone)
    if not is_advised and own is not None and method != alone and loss > float(own) + MARGIN * base:
        return f"on its test rows the model is worse than training alone (loss {loss:.3g} against {float(own):.3g})"
    return ""


def chosen_method(summary: Mapping[str, Any]) -> str | None:
    """The method that the federation should run, or the only one; None if none was chosen."""
    federation = summary.get("federation")
    if federation is not None:
        return str(federation["about"])
    others = [label for label in summary["methods"] if label != summary["alone"]] or [*summary["methods"]]
    return str(others[0]) if len(others) == 1 else None


def _only(summary: Mapping[str, Any]) -> str:
    method = chosen_method(summary)
    if method is None:
        raise InputError("the run chose no method, because it has no training alone, or no test rows: name one with "
                         f"--method, such as {quote(next(m for m in summary['methods'] if m != summary['alone']))}")
    return method
