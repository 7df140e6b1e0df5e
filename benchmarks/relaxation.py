"""Which over-relaxations of Fed+'s personal anchors converge to a fixed point, and how fast?

    python benchmarks/relaxation.py --out benchmarks/relaxation.json --figure benchmarks/relaxation.svg

``personal_splitting`` with the Euclidean norm over a grid of (alpha, beta, gamma), in float64. For convex losses, exact
steps and full participation it is proved that the iterates converge if gamma < 1, or if alpha < 2 and beta < 2. This
benchmark shows the other cases: gamma = 1 with alpha or beta = 2, few gradient steps, absent parties, a nonconvex loss.
"""

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

import resolvent as rv
from records import as_json
from resolvent.math import tree
from resolvent.simulator.engine.rounds import initial_state, run_rounds
from resolvent.simulator.record.plots import style

RELAXATIONS, SHARES = (0.5, 1.0, 1.5, 2.0), (0.5, 1.0)
ROUNDS, SETTLED = 1000, 1e-8
FULL = rv.participation.Full("uniform")


def least_squares() -> rv.problems.QuadraticProblem:
    """Six parties with fewer samples than unknowns: convex, but no party strongly so."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(6, 3, 4))
    return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(3 * rng.normal(size=(6, 3))))


def classification(model: rv.Model) -> rv.problems.LearningProblem:
    """Six parties of 20 samples in two dimensions; each has a different direction."""
    rng = np.random.default_rng(1)
    x = [rng.normal(size=(20, 2)) for _ in range(6)]
    y = [(xk @ rng.normal(size=2) + 0.3 * rng.normal(size=20) > 0).astype(int) for xk in x]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1"])
    return rv.problems.LearningProblem(model, data)


def network() -> rv.Model:
    """Four hidden units with tanh: smooth, not convex; the l2 penalty bounds the minimisers."""
    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (4, 2)), "out": jax.random.normal(second, (2, 4))}

    def apply(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["in"].T) @ params["out"].T

    return rv.models.from_functions(init, apply, l2=0.05)


Case: TypeAlias = tuple[rv.problems.Problem, rv.solvers.LocalSolver, rv.participation.Participation, dict[str, Any]]


def cases() -> dict[str, Case]:
    """The problem, the local solver, the participation and the settings of each case."""
    tug = rv.problems.QuadraticProblem(jnp.zeros((2, 1, 1)), jnp.array([[-1.0], [1.0]]))
    logistic = classification(rv.models.logistic(2, 2, l2=0.0))
    few, many = rv.solvers.GD(0.5, steps=3), rv.solvers.GD(0.5, steps=150)
    return {
        "linear losses": (tug, rv.solvers.ClosedForm(), FULL, {"sigma": 1.0, "delta": 5.0}),
        "least squares": (least_squares(), rv.solvers.ClosedForm(), FULL, {"sigma": 1.0, "delta": 1.0}),
        "logistic": (logistic, many, FULL, {"sigma": 0.5, "delta": 0.2}),
        "logistic,\n3 gradient steps": (logistic, few, FULL, {"sigma": 0.5, "delta": 0.2}),
        "logistic,\nhalf the parties": (logistic, many, rv.participation.Uniform(3, "uniform"),
                                        {"sigma": 0.5, "delta": 0.2, "aggregate": "all"}),
        "neural network\n(not convex)": (classification(network()), many, FULL,
                                         {"sigma": 0.5, "delta": 0.2}),
    }


def steps_of(algorithm: rv.Algorithm, problem: rv.problems.Problem,
             participation: rv.participation.Participation) -> list[float]:
    """|u_{t+1} - u_t| over all parties, round by round, until it has settled."""
    state, sizes = initial_state(algorithm, problem, participation), []
    for t in range(ROUNDS):
        before = state.parties[0]
        state = run_rounds(algorithm, problem, participation, state=state, start=t)
        sizes.append(float(tree.norm(tree.sub(state.parties[0], before))))
        # The first steps are not evidence, because all parties start from the same model; nor is a single small step.
        if not np.isfinite(sizes[-1]) or (t > 10 and max(sizes[-10:]) < SETTLED):
            break
    return sizes


def row_of(case: str, setting: tuple[float, float, float], sizes: list[float]) -> dict[str, Any]:
    """Whether and when the iterates settled; if not, whether the steps still shrank, and by which factor per round."""
    alpha, beta, gamma = setting
    settled = max(sizes[-10:]) < SETTLED
    half = len(sizes) // 2
    first, last = max(sizes[half:half + 10]), max(sizes[-10:])
    rate = (last / first) ** (1 / max(1, len(sizes) - half - 10)) if first > 0 else 0.0
    observed = any(word in case for word in ("gradient", "half", "not convex"))
    return {"case": case.replace("\n", " "), "alpha": alpha, "beta": beta, "gamma": gamma,
            "proved": not observed and (gamma < 1 or max(alpha, beta) < 2),
            "outcome": "settled" if settled else "slow" if last < 0.8 * first else "no",
            "rounds": len(sizes) - 9 if settled else None, "rate": round(rate, 4), "last_step": float(f"{last:.2e}")}


def draw(rows: list[dict[str, Any]], names: list[str]) -> Figure:
    """Rounds to settle over (alpha, beta): a column per case, a row per gamma; hatched: not settled."""
    with mpl.rc_context({**style, "axes.grid": False, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(2.05 * len(names) + 0.8, 4.9), layout="constrained")
        panels = figure.subplots(len(SHARES), len(names), sharex=True, sharey=True)
        for i, gamma in enumerate(SHARES):
            for j, name in enumerate(names):
                axes = panels[i, j]
                outcomes = {(r["alpha"], r["beta"]): r for r in rows
                        if r["case"] == name.replace("\n", " ") and r["gamma"] == gamma}
                grid = [[outcomes[a, b]["rounds"] or np.nan for b in RELAXATIONS] for a in RELAXATIONS]
                image = axes.imshow(grid, origin="lower", cmap="cividis_r", norm=LogNorm(10, ROUNDS))
                for x, beta in enumerate(RELAXATIONS):
                    for y, alpha in enumerate(RELAXATIONS):
                        cell = outcomes[alpha, beta]
                        if cell["outcome"] == "no":
                            axes.add_patch(mpl.patches.Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, hatch="////",
                                                                 edgecolor="#999999", linewidth=0))
                        text = {"settled": str(cell["rounds"]), "slow": "slow", "no": "no"}[cell["outcome"]]
                        dark = cell["outcome"] == "settled" and cell["rounds"] > 100
                        axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "black",
                                  bbox=None if cell["outcome"] == "settled" else
                                  {"facecolor": "white", "edgecolor": "none", "pad": 1})
                axes.set_xticks(range(len(RELAXATIONS)), [f"{v:g}" for v in RELAXATIONS])
                axes.set_yticks(range(len(RELAXATIONS)), [f"{v:g}" for v in RELAXATIONS])
                if i == 0:
                    axes.set_title(name)
                if i == len(SHARES) - 1:
                    axes.set_xlabel("beta")
                if j == 0:
                    axes.set_ylabel(f"gamma = {gamma:g}\nalpha")
        figure.colorbar(image, ax=panels, label="rounds until the iterates have settled", shrink=0.8)
    return figure


def main() -> None:
    """Run the grid, print it, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw them")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows, all_cases = [], cases()
    for case, (problem, solver, participation, settings) in all_cases.items():
        for alpha in RELAXATIONS:
            for beta in RELAXATIONS:
                for gamma in SHARES:
                    algorithm = rv.personal_splitting(solver, rv.penalties.L2Norm(), alpha=alpha, beta=beta,
                                                      gamma=gamma, **settings)
                    rows.append(row_of(case, (alpha, beta, gamma), steps_of(algorithm, problem, participation)))
        case_rows = [r for r in rows if r["case"] == case.replace("\n", " ")]
        for outcome in ("settled", "slow", "no"):
            settings_of_outcome = [f"({r['alpha']:g}, {r['beta']:g}, {r['gamma']:g})" for r in case_rows
                                   if r["outcome"] == outcome]
            print(f"{case_rows[0]['case']:27} {outcome:8} {len(settings_of_outcome):2}",
                  *(settings_of_outcome if outcome != "settled" else ()))
    if options.out:
        facts = {"rounds": ROUNDS, "settled": SETTLED, "penalty": "L2Norm", "jax": jax.__version__,
                 "command": f"python benchmarks/relaxation.py --out {options.out} --figure {options.figure}"}
        options.out.write_text(as_json(facts, rows=rows))
    if options.figure:
        with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
            draw(rows, list(all_cases)).savefig(options.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
