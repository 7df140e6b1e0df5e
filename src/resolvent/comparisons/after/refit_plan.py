"""What ``resolvent model refit`` trains again: the chosen method, its number of rounds, and the method of each site.

The number of rounds is the one with the best validation score. It is not scaled by the larger number of training rows:
an epoch over more rows has more steps, so that the same number of rounds passes over each row as often as it did.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.private_parties import is_private
from resolvent.comparisons.after.advised import (
    SiteModel,
    chosen_method,
    models_of_sites,
    reason_against,
    reasons_against,
)
from resolvent.comparisons.runs.record import RunRecord
from resolvent.errors import InputError, alternatives, quote, shorten

if TYPE_CHECKING:
    import pandas as pd


class RefitPlan(NamedTuple):
    """What is trained again.

    Attributes:
        method: the chosen method.
        rounds: number of rounds of each method that a site uses, by its label.
        use: site -> the method that it uses; without sites for which no model is written.
        shared: the sites that use the shared model of a method that has personal models as well.
        against: site -> why no model is written for it, or why the written one should not be used.
    """

    method: str
    rounds: dict[str, int]
    use: dict[str, str]
    shared: tuple[str, ...] = ()
    against: Mapping[str, str] = MappingProxyType({})


def plan_refit(record: RunRecord, metrics: "pd.DataFrame", method: str | None = None,
               rounds: int | None = None, *, anyway: bool = False) -> RefitPlan:
    """The methods that are trained again, by the advice of a run.

    A site that was advised to train alone uses its own model; the others use the chosen method. A method that no site
    uses is not trained, and a site without a model that is worth using gets none.

    Args:
        rounds: number of rounds of all methods; default: by the validation scores, see ``best_round``.
        anyway: every site gets its model, also one that was worse than the predictions that need no training; and with
            ``method`` every site uses this method, also where it was advised to train alone.
    """
    if method is not None and method not in record.methods:
        raise InputError(f"the run has no method {quote(method)}{alternatives(method, [*record.methods])}")
    plan = plan_of_sites(record, method, anyway=anyway)
    labels = [label for label in record.methods if label in plan.use.values() or label == method]
    if not labels:
        raise InputError("no site has a model that is worth using: "
                         + shorten("; ".join(f"{site}: {reason}" for site, reason in plan.against.items()))
                         + ". Give --anyway to train the models again nevertheless")
    if searched := [label for label in labels if record.methods[label].tuned]:
        raise InputError(f"the hyperparameters of {searched[0]} were chosen in each fold, so that there is no set of "
                         "values for one model: choose it with `resolvent tune` and folds=1, run that file, and refit "
                         "that run")
    return plan._replace(rounds={label: rounds or best_round(record, metrics, label) for label in labels})


def plan_of_sites(record: RunRecord, method: str | None = None, methods: Sequence[str] = (), *,
                  anyway: bool = False) -> RefitPlan:
    """What each site uses; a plan without numbers of rounds.

    Args:
        methods: the methods of which there are models; default: all.
        anyway: see ``plan_refit``.
    """
    models = models_of_sites(record, method, methods)
    if anyway and method is not None:
        models = {name: SiteModel(method, against=reason_against(record, record.judged[name], method)
                                  if name in record.judged else "") for name in models}
    chosen = method or chosen_method(record)
    assert chosen is not None
    written = {name: model for name, model in models.items() if anyway or not model.against}
    return RefitPlan(chosen, {}, {name: model.method for name, model in written.items()},
                     tuple(name for name, model in written.items() if model.is_shared), reasons_against(models))


def best_round(record: RunRecord, metrics: "pd.DataFrame", method: str) -> int:
    """The evaluated round after which a method had the best validation score.

    It is the first round of the highest mean over the seeds and the sites, in which a site counts as its number of
    training rows. A site without validation rows does not count; a score that is not finite is the worst.

    Returns:
        The round; the last round if no site has validation scores.
    """
    of_method = metrics[metrics["method"] == method]
    curve = of_method[(of_method["metric"] == record.score) & (of_method["split"] == "validation")]
    table = curve.pivot_table(index="round", columns=["seed", "party"], values="value", dropna=False)
    table = table.loc[:, table.notna().any()]
    table = table[table.index > 0]
    if table.empty:
        return int(of_method["round"].max())
    train = record.data.train
    weights = np.array([float(train[int(party)]) for party in table.columns.get_level_values("party")])
    scores = np.nan_to_num((table if record.higher_is_better else -table).to_numpy(float), nan=-np.inf)
    with np.errstate(invalid="ignore"):
        means = np.where(np.isfinite(scores).all(axis=1), np.where(np.isfinite(scores), scores, 0) @ weights, -np.inf)
    return int(table.index[int(means.argmax())])


def check_can_be_refitted(label: str, algorithm: Algorithm) -> None:
    """Refuse a differentially private method."""
    if is_private(algorithm):
        raise InputError(f"{label} is differentially private. Training it again would release the same rows a second "
                         "time, and no account would add up what both trainings spend: use the models of the run; or "
                         "train once on all rows, in a new experiment with validation: 0 and a small share for test")
