"""Comparisons on problems with a known optimum: how fast the shared model approaches it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.comparisons.judgement.metrics import GAP, GAP_TARGETS
from resolvent.comparisons.judgement.wording import enumerate_names
from resolvent.errors import count_of

if TYPE_CHECKING:
    import pandas as pd


def gap_table(metrics: "pd.DataFrame", methods: Sequence[str]) -> "pd.DataFrame":
    """The optimality gap f(w) - f* of each method's shared model.

    Columns: the first and the last gap, and the first rounds after which the gap is at most 1e-6 and 1e-8 of the first
    one. A number of rounds is nan if the gap never is that small.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for method in methods:
        of_method = _gaps_of(metrics, method)
        gaps, rounds = of_method["value"].to_numpy(), of_method["round"].to_numpy()
        row = {"method": method, "first gap": gaps[0], "final gap": gaps[-1]}
        for target in GAP_TARGETS:
            reached = rounds[gaps <= float(target) * gaps[0]]
            row[f"rounds to {target}"] = int(reached[0]) if len(reached) else np.nan
        rows.append(row)
    return pd.DataFrame(rows).astype({f"rounds to {target}": object for target in GAP_TARGETS})


def gap_finding(table: "pd.DataFrame", metrics: "pd.DataFrame") -> str:
    """One sentence: the smallest final gap, the fastest method, the methods that stop short, those that diverged."""
    finite = table[np.isfinite(table["final gap"].astype(float))].sort_values("final gap", kind="stable")
    if finite.empty:
        return "Every method diverged."
    best = finite.iloc[0]
    text = f"{best['method']} comes nearest the optimum, within {best['final gap']:.2g} of the minimum"
    target = GAP_TARGETS[0]
    rounds = table.set_index("method")[f"rounds to {target}"].astype(float)
    if rounds.notna().any():
        text += (f"; {rounds.idxmin()} is the first to reduce the gap to {target} of the first one, "
                 f"in {count_of(int(rounds.min()), 'round')}")
    stalled = finite[[_has_stalled(metrics, method) for method in finite["method"]]].sort_index()
    if len(stalled):
        low, high = (f"{end:.2g}" for end in (stalled["final gap"].min(), stalled["final gap"].max()))
        text += (f". {enumerate_names(list(stalled['method']))} stop{'s' if len(stalled) == 1 else ''} short of it, at "
                 f"{low}{'' if low == high else f' to {high}'} above")
    diverged = list(table.loc[~table["method"].isin(finite["method"]), "method"])
    return f"{text}. {enumerate_names(diverged)} diverged." if diverged else f"{text}."


def _gaps_of(metrics: "pd.DataFrame", method: str) -> "pd.DataFrame":
    return metrics[(metrics["method"] == method) & (metrics["metric"] == GAP)].sort_values("round")


def _has_stalled(metrics: "pd.DataFrame", method: str) -> bool:
    """Whether the last quarter of the rounds reduced the gap by less than 10 %, and rounding does not explain it."""
    gaps = _gaps_of(metrics, method)["value"].to_numpy()
    return bool(gaps[-1] > 0.9 * gaps[3 * (len(gaps) - 1) // 4] and gaps[-1] > 1e-14 * gaps[0])
