"""Comparisons on problems whose optimum is known: how fast the shared model comes near it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from resolvent.study.wording import listed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["TARGETS", "gap_finding", "gap_table"]

TARGETS = ("1e-6", "1e-8")


def gap_table(metrics: "pd.DataFrame", methods: Sequence[str]) -> "pd.DataFrame":
    """Per method: the optimality gap f(w) - f* of the shared model at first and at the end, and the first rounds at
    which it was 1e-6 and 1e-8 of the first one; nan where it never was, or where the method diverged.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    for method in methods:
        mine = metrics[(metrics["method"] == method) & (metrics["metric"] == "gap")].sort_values("round")
        gaps, rounds = mine["value"].to_numpy(), mine["round"].to_numpy()
        row = {"method": method, "first gap": gaps[0], "final gap": gaps[-1]}
        for target in TARGETS:
            near = rounds[gaps <= float(target) * gaps[0]]
            row[f"rounds to {target}"] = int(near[0]) if len(near) else np.nan
        rows.append(row)
    return pd.DataFrame(rows).astype({f"rounds to {target}": object for target in TARGETS})


def gap_finding(table: "pd.DataFrame", metrics: "pd.DataFrame") -> str:
    """One sentence: who comes nearest the optimum, who is quickest to come near, and who stands still short of it."""
    near = table[np.isfinite(table["final gap"].astype(float))].sort_values("final gap", kind="stable")
    if near.empty:
        return "Every method diverged."
    best = near.iloc[0]
    text = f"{best['method']} comes nearest the optimum, within {best['final gap']:.2g} of the least value"
    target = TARGETS[0]
    rounds = table.set_index("method")[f"rounds to {target}"].astype(float)
    if rounds.notna().any():
        text += (f"; {rounds.idxmin()} is the first to bring the gap down to {target} of the first one, "
                 f"in {_rounds(rounds.min())}")
    still = near[[_stands_still(metrics, m) for m in near["method"]]].sort_index()
    if len(still):
        low, high = (f"{end:.2g}" for end in (still["final gap"].min(), still["final gap"].max()))
        text += (f". {listed(list(still['method']))} stand{'s' if len(still) == 1 else ''} still short of it, at "
                 f"{low}{'' if low == high else f' to {high}'} above")
    gone = table.loc[~table["method"].isin(near["method"]), "method"]
    return f"{text}. {listed(list(gone))} diverged." if len(gone) else f"{text}."


def _stands_still(metrics: "pd.DataFrame", method: str) -> bool:
    """Whether the last quarter of the rounds gained next to nothing, though rounding was still far."""
    mine = metrics[(metrics["method"] == method) & (metrics["metric"] == "gap")].sort_values("round")
    gaps = mine["value"].to_numpy()
    return bool(gaps[-1] > 0.9 * gaps[3 * (len(gaps) - 1) // 4] and gaps[-1] > 1e-14 * gaps[0])


def _rounds(count: float) -> str:
    return f"{count:.0f} round{'' if count == 1 else 's'}"
