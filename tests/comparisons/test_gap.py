"""Comparisons on a problem with a known optimum: the instance, the gap, and the finding."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML
from safetensors.numpy import load_file

import resolvent as rv
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.judgement.gap import gap_finding, gap_table
from resolvent.errors import InputError
from resolvent.problem.problems import least_squares
from resolvent.simulator.record.diagnostics import dissimilarity
from resolvent.simulator.record.plots import colour_of

TINY = {"parties": 4, "samples": 30, "features": 3, "noise": 0.5, "heterogeneity": 0.3, "seed": 1}
METHODS = ("algorithms={FedPi: {name: fedpi, eta: 0.03}, FedProx: {name: fedprox, mu: 30},"
           " FedPi + Anderson: {name: Anderson, history_size: 3, inner: {name: fedpi, eta: 0.03}}}")
CHANGES = [*(f"problem.{key}={value}" for key, value in TINY.items()), METHODS, "rounds=60", "seed=2"]


@pytest.fixture(scope="module")
def run(call, tmp_path_factory):
    """A tiny run of the shipped experiment: folder, summary, gaps, and the outcome of the command."""
    cwd = tmp_path_factory.mktemp("gap")
    outcome = call("run", "splitting", "--set", *CHANGES, cwd=cwd)
    assert outcome.code == 0, outcome.err
    folder = cwd / "runs" / "splitting"
    metrics = pd.read_parquet(folder / "metrics.parquet")
    return folder, json.loads((folder / "summary.json").read_text()), metrics[metrics["metric"] == "gap"], outcome


def designs():
    """A_k and b_k, drawn as the docstring says."""
    rng = np.random.default_rng(TINY["seed"])
    common = rng.normal(size=3)
    for _ in range(TINY["parties"]):
        a = rng.normal(size=(30, 3))
        yield a, a @ (common + 0.3 * rng.normal(size=3)) + 0.5 * rng.normal(size=30)


@pytest.mark.when_changed
def test_the_last_gaps_are_those_of_the_models_that_were_saved(run):
    folder, summary, gaps, _ = run
    a, b = (np.array(rows) for rows in zip(*designs(), strict=True))
    best = np.linalg.lstsq(a.reshape(-1, 3), b.ravel(), rcond=None)[0]

    def value(w):
        return 0.5 * np.mean(np.sum((np.einsum("kni,i->kn", a, w) - b) ** 2, axis=1))

    for method in ("FedPi", "FedProx", "FedPi + Anderson"):
        (w,) = load_file(folder / "models" / folder_name(method) / "server.safetensors").values()
        assert w.dtype == np.float64
        final = summary["methods"][method]["final"]["final gap"]
        assert final == pytest.approx(value(w) - value(best), abs=1e-13 * value(best))
        mine = gaps[gaps["method"] == method].sort_values("round")
        assert list(mine["round"]) == list(range(61))
        assert mine["value"].iloc[[0, -1]].tolist() == pytest.approx([value(np.zeros(3)) - value(best), final])
        assert summary["methods"][method]["best"]["mean"] == mine["value"].min()
    assert summary["methods"]["FedPi"]["final"]["final gap"] < 1e-12
    assert summary["methods"]["FedProx"]["final"]["final gap"] > 1e-5
    assert not jax.config.jax_enable_x64  # the run's precision is the run's own


@pytest.mark.when_changed
def test_terminal_and_report_have_the_gaps(run):
    folder, summary, _, outcome = run
    assert summary["score"] == "gap"
    assert (summary["alone"], summary["data"]["train"], "test" in summary["data"]) == (None, [30] * 4, False)
    assert "FedProx stops short of it" in summary["finding"]
    text, page = outcome.out, (folder / "report.html").read_text()
    for method, facts in summary["methods"].items():
        final = facts["final"]
        row = next(line for line in text.splitlines() if line.strip().startswith(f"{method}  "))
        assert row.split()[-4:] == ["-" if final[c] is None else f"{final[c]:.4g}"
                                    for c in ("first gap", "final gap", "rounds to 1e-6", "rounds to 1e-8")]
        assert f"{method}: optimality gap" in page.replace("&#43;", "+")
    body = page[page.index("<body>"):page.index("<details>")]
    assert "Distance to the optimum" in body
    assert "est samples" not in body
    assert "alone" not in body


def test_shown_in_full_it_can_be_loaded_again(call, tmp_path):
    outcome = call("show", "splitting", cwd=tmp_path)
    (tmp_path / "again.yaml").write_text(outcome.out)
    again = ExperimentFile.load(str(tmp_path / "again.yaml")).bound.settings()
    assert again == ExperimentFile.load("splitting").bound.settings()
    assert YAML(typ="safe").load(outcome.out)["algorithms"]["FedRP + Anderson"]["inner"]["name"] == "fedrp"


def by_hand(gaps):
    rows = [(method, t, "gap", value) for method, values in gaps.items() for t, value in reversed([*enumerate(values)])]
    metrics = pd.DataFrame(rows, columns=["method", "round", "metric", "value"])
    return gap_table(metrics, list(gaps)), metrics


def test_rounds_are_counted_to_the_first_that_is_near_enough():
    table, _ = by_hand({"A": [10.0, 9e-6, 2e-5, 1e-9], "B": [5.0, np.nan, 1.0, np.nan], "C": [4.0, 3.0, 3.0, 3.0]})
    assert table["first gap"].tolist() == [10.0, 5.0, 4.0]
    assert table["rounds to 1e-6"].tolist()[0] == 1
    assert table["rounds to 1e-8"].tolist()[0] == 3
    assert table[["rounds to 1e-6", "rounds to 1e-8"]].iloc[1:].isna().all(axis=None)


def test_findings():
    table, metrics = by_hand({"A": [1.0, 1e-3, 1e-7, 1e-9], "B": [1.0, 1e-7, 3e-8, 3e-8], "C": [1.0, 0.5, 0.5, 0.5],
                              "D": [1.0, 9.0, np.inf, np.nan]})
    assert gap_finding(table, metrics) == (
        "A comes nearest the optimum, within 1e-09 of the minimum; B is the first to reduce the gap to 1e-6 of the "
        "first one, in 1 round. B and C stop short of it, at 3e-08 to 0.5 above. D diverged.")
    assert gap_finding(*by_hand({"A": [1.0, 0.9, 0.7, 0.6]})) == (
        "A comes nearest the optimum, within 0.6 of the minimum.")
    assert gap_finding(*by_hand({"A": [1.0, np.nan]})) == "Every method diverged."


@pytest.mark.parametrize(("changes", "message"), [
    (["data=digits"], "data: a problem has its own"),
    (["model=linear"], "model: a problem has its own"),
    (["problem.samples=1", "problem.parties=2"], "problem: parties=2 times samples=1"),
    (["problem.noise=-1"], "problem: .*noise=-1.0"),
    (["algorithms={alone: local}"], "algorithms.alone: it has no shared model"),
    (["precision=float16"], "precision: 'float16' is not a valid value.* Allowed: float32, float64"),
])
def test_wrong_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        ExperimentFile.load("splitting", [*CHANGES, *changes]).build()


# --- the instance ---------------------------------------------------------------------------------------------------

@pytest.mark.when_changed
def test_heterogeneity_is_what_the_docstring_says():
    with jax.enable_x64(True):
        alike = jnp.full(40, 1 / 40)
        for noise, spread in ((0.5, 0.0), (0.5, 0.2), (0.0, 0.0)):
            problem = least_squares(parties=40, samples=400, features=20, noise=noise, heterogeneity=spread)
            w = problem.optimum(alike)
            gradients = [np.asarray(problem.oracle(jnp.array(k)).grad(w)) for k in range(40)]
            np.testing.assert_allclose(np.mean(gradients, axis=0), 0, atol=1e-9)
            measured = float(dissimilarity(problem, w).heterogeneity)
            assert measured == pytest.approx(np.mean(np.sum(np.square(gradients), axis=1)), rel=1e-9, abs=1e-12)
            expected = 400 * 20 * (noise**2 + 400 * spread**2)
            assert measured == pytest.approx(expected, rel=0.15, abs=1e-12)
            values = [float(rv.problems.QuadraticProblem.gap(problem, w + h, alike)) for h in (0.0, 1e-9)]
            assert values[0] == 0  # far below the rounding of f
            assert values[1] == pytest.approx(0.5 * 400 * 20 * 1e-18, rel=0.5)


def test_the_seed_decides():
    first, same, other = (least_squares(**TINY | {"seed": s}).linears for s in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert np.abs(np.asarray(first - other)).max() > 1


def test_a_variant_has_its_methods_colour():
    colours = colour_of(["A", "B", "A + x", "C + x", "A + y"])
    assert list(colours) == ["A", "B", "A + x", "C + x", "A + y"]
    assert colours["A"][0] == colours["A + x"][0] == colours["A + y"][0]
    assert len({colours[m][0] for m in ("A", "B", "C + x")}) == 3
    assert len({colours[m] for m in colours}) == 5
