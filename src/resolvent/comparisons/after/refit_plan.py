"""What ``resolvent model refit`` trains again: the chosen method, its number of rounds, and the method of each site.

The number of rounds is that with the best validation score. It is not scaled by the larger number of training rows: an
epoch over more rows has more steps, so that the same number of rounds passes over each row as often as it did.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.private_parties import is_private
from resolvent.errors import InputError, alternatives, quote, shorten

if TYPE_CHECKING:
    import pandas as pd


class RefitPlan(NamedTuple):
    """What is trained again.

    Attributes:
        method: the chosen method.
        rounds: number of rounds of each method that a site uses, by its label.
        use: site -> the method that it uses.
    """

    method: str
    rounds: dict[str, int]
    use: dict[str, str]


def plan_refit(summary: Mapping[str, Any], metrics: "pd.DataFrame", method: str | None = None,
               rounds: int | None = None) -> RefitPlan:
    """The methods that are trained again, by the decisions of a run.

    A site that was advised to train alone uses its own model; the others use the chosen method. A method that no site
    uses is not trained.

    Args:
        rounds: number of rounds of all methods; default: by the validation scores, see ``best_round``.
    """
    chosen = _chosen(summary, method)
    use = use_of_sites(summary, chosen, [*summary["methods"]])
    labels = [label for label in summary["methods"] if label in use.values() or label == method]
    if searched := [label for label in labels if summary["methods"][label].get("tuned")]:
        raise InputError(f"the hyperparameters of {searched[0]} were chosen in each fold, so that there is no set of "
                         "values for one model: choose it with `resolvent tune` and folds=1, run that file, and refit "
                         "that run")
    return RefitPlan(chosen, {label: rounds or best_round(summary, metrics, label) for label in labels}, use)


def use_of_sites(summary: Mapping[str, Any], chosen: str, methods: Sequence[str]) -> dict[str, str]:
    """Site -> the method that it uses: training alone if it was advised to, otherwise the chosen one."""
    use, alone = dict.fromkeys(summary["data"]["parties"], chosen), summary["alone"]
    for site in summary["sites"]:
        decision = site["decision"]
        is_decided = decision is not None and decision["federation"] is not None
        if is_decided and decision["use"] == alone and alone in methods:
            use[site["name"]] = alone
    return use


def _chosen(summary: Mapping[str, Any], method: str | None) -> str:
    labels = [*summary["methods"]]
    if method is not None:
        if method not in labels:
            raise InputError(f"the run has no method {quote(method)}{alternatives(method, labels)}")
        return method
    decided = {site["decision"]["federation"] for site in summary["sites"] if site["decision"] is not None} - {None}
    others = [label for label in labels if label != summary["alone"]] or labels
    choices = [summary["choice"]["method"]] if summary["choice"] is not None else [*decided] or others
    if len(choices) > 1:
        raise InputError("the run chose no method, because it has no training alone, or no validation rows: name one "
                         f"with --method, such as {choices[0]}; there are {shorten(', '.join(labels))}")
    return str(choices[0])


def best_round(summary: Mapping[str, Any], metrics: "pd.DataFrame", method: str) -> int:
    """The evaluated round after which a method had the best validation score.

    It is the first round of the highest mean over the seeds and the sites, in which a site counts as its number of
    training rows. A site without validation rows does not count; a score that is not finite is the worst.

    Returns:
        The round; the last round if no site has validation scores.
    """
    of_method = metrics[metrics["method"] == method]
    curve = of_method[(of_method["metric"] == summary["score"]) & (of_method["split"] == "validation")]
    table = curve.pivot_table(index="round", columns=["seed", "party"], values="value", dropna=False)
    table = table.loc[:, table.notna().any()]
    table = table[table.index > 0]
    if table.empty:
        return int(of_method["round"].max())
    train = summary["data"]["train"]
    weights = np.array([float(train[int(party)]) for _, party in table.columns])
    scores = np.nan_to_num((table if summary["higher_is_better"] else -table).to_numpy(float), nan=-np.inf)
    with np.errstate(invalid="ignore"):
        means = np.where(np.isfinite(scores).all(axis=1), np.where(np.isfinite(scores), scores, 0) @ weights, -np.inf)
    return int(table.index[int(means.argmax())])


def check_can_be_refitted(label: str, algorithm: Algorithm) -> None:
    """Refuse a differentially private method."""
    if is_private(algorithm):
        raise InputError(f"{label} is differentially private. Training it again would release the same rows a second "
                         "time, and no account would add up what both trainings spend: use the models of the run; or "
                         "train once on all rows, in a new experiment with validation: 0 and a small share for test")
