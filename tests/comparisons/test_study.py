"""Differences, ranks, costs, tables and the folder for a paper, against SciPy, statsmodels and a separate script."""

import re
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

import resolvent as rv
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.study.costs import costs, entropy, fairness, gini, worst_decile
from resolvent.comparisons.study.differences import benjamini_hochberg, differences, holm
from resolvent.comparisons.study.ranks import critical_difference, rank_methods
from resolvent.comparisons.study.readings import StudyReadings
from resolvent.comparisons.text_tables import text_table
from resolvent.errors import InputError

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "study_numbers.py"


def compare(seed, out):
    """The methods with a server are one program with two numbers, and both data sets have the same shapes."""
    solver = rv.SGD(0.1, batch_size=20, epochs=1)
    methods = {"alone": rv.local(solver), "FedAvg": rv.fedprox(solver, mu=0.0),
               "FedProx": rv.fedprox(solver, mu=5.0)}
    data = rv.datasets.digits(parties=4, classes_per_party=5, seed=seed)
    return rv.compare(methods, rv.models.logistic(64, 10), data, rounds=4, seeds=3, evaluate_every=1,
                      clock=rv.VirtualClock(), progress=False, out=out)


def with_methods(comparison, methods):
    """The comparison as if only these methods had run."""
    rows, experiment = comparison.rows, comparison.experiment
    values = {m: v for m, v in rows.values.items() if m in methods or m not in comparison.results}
    return replace(
        comparison, rows=replace(rows, values=values), alone="alone" if "alone" in methods else None,
        experiment=replace(experiment, algorithms={m: experiment.algorithms[m] for m in methods}),
        results={m: comparison.results[m] for m in methods}, runs={m: comparison.runs[m] for m in methods})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two data sets: their comparisons and their folders."""
    folder = tmp_path_factory.mktemp("runs")
    return {f"digits {n}": (compare(n, folder / str(n)), folder / str(n))
            for n in (3, 5)}


@pytest.fixture(scope="module")
def study(runs):
    return rv.Study({name: comparison for name, (comparison, _) in runs.items()})


@pytest.mark.when_changed
def test_an_independent_script_computes_the_same_numbers_from_the_folders(runs, tmp_path):
    """The folder is written from the run folders, and checked by a program that imports nothing of the library."""
    folders = {name: folder for name, (_, folder) in runs.items()}
    page = rv.Study(folders).paper(tmp_path / "paper").read_text("utf-8")
    runpy.run_path(str(SCRIPT))["recompute"](tmp_path / "paper", folders)
    assert f"resolvent compare 'digits 3={folders['digits 3']}'" in page
    for kind in ("curves", "traffic", "parties", "gains", "differences", "ranks"):
        content = (tmp_path / "paper" / f"{kind}.pdf").read_bytes()
        assert content.startswith(b"%PDF")
        assert b"/FontFile2" in content  # TrueType, which publishers ask for
    width = re.search(rb"MediaBox \[ 0 0 ([\d.]+)", (tmp_path / "paper" / "curves.pdf").read_bytes())[1]
    assert float(width) == pytest.approx(6.9 * 72, abs=1)
    assert "SGD(learning_rate=0.1" in page


@pytest.mark.when_changed
def test_folders_and_memory_have_the_same_numbers(runs, study):
    saved = rv.Study({name: folder for name, (_, folder) in runs.items()})
    for table in ("differences", "costs", "fairness", "table"):
        pd.testing.assert_frame_equal(getattr(saved, table)(), getattr(study, table)())
    assert saved.paragraph() == study.paragraph()
    single, (comparison, _) = study.differences(), runs["digits 3"]
    pd.testing.assert_frame_equal(comparison.differences().drop(columns="data"),
                                  single[single["data"] == "digits 3"].drop(columns="data"))


@pytest.mark.when_changed
def test_the_run_of_a_colleague_adds_its_methods(runs, tmp_path):
    with_methods(runs["digits 3"][0], ["FedAvg"]).save(tmp_path / "mine")
    with_methods(runs["digits 3"][0], ["alone", "FedProx"]).save(tmp_path / "theirs")
    together = rv.Study({"digits": [tmp_path / "mine", tmp_path / "theirs"]}).differences("FedAvg")
    at_once = rv.Study({"digits": runs["digits 3"][1]}).differences("FedAvg")
    pd.testing.assert_frame_equal(together, at_once)
    with pytest.raises(rv.InputError, match="differ in their sites or in their test rows"):
        rv.Study({"digits": [tmp_path / "mine", runs["digits 5"][1]]})


@pytest.mark.when_changed
@pytest.mark.parametrize(("by", "axis"), [("seeds", "seed"), ("parties", "party")])
def test_seeds_and_parties_are_paired_as_scipy_does(study, by, axis):
    evidence = study.parts["digits 5"].evidence
    rows = evidence.metrics[(evidence.metrics["metric"] == "accuracy") & (evidence.metrics["split"] == "test")]
    last = rows[rows["round"] == 4].pivot_table(index=axis, columns="method", values="value")
    table = study.differences("alone", by=by)
    for row in table[table["data"] == "digits 5"].itertuples():
        test = stats.ttest_rel(last[row.method], last["alone"])
        assert row.p == pytest.approx(test.pvalue, rel=1e-9)
        assert (row.low, row.high) == pytest.approx(tuple(test.confidence_interval()), rel=1e-9)
        gains = last[row.method] - last["alone"]
        assert row.effect == pytest.approx(gains.mean() / gains.std())
        assert (row.better, row.worse, row.units) == ((gains > 0).sum(), (gains < 0).sum(), len(gains))


def test_corrections_are_those_of_statsmodels():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 40):
        p = rng.uniform(size=size) ** 3
        np.testing.assert_allclose(holm(p), multipletests(p, method="holm")[1], rtol=1e-12)
        np.testing.assert_allclose(benjamini_hochberg(p), multipletests(p, method="fdr_bh")[1], rtol=1e-12)
    with_nan = holm([0.01, np.nan, 0.5])
    assert with_nan[0] == 0.02
    assert np.isnan(with_nan[1])


@pytest.mark.when_changed
def test_a_difference_that_is_not_there_is_found_as_often_as_the_level_says():
    """Two methods with the same chances on the same rows: p < 0.05 in about 5 % of the data sets, or in fewer."""
    from resolvent.comparisons.judgement.row_values import RowValues

    rng, rejected, repeats = np.random.default_rng(3), 0, 60
    for _ in range(repeats):
        values = {m: (rng.uniform(size=200) < 0.7).astype(float) for m in ("A", "B")}
        rows = RowValues(np.zeros(200, int), np.repeat([0, 1], 100), np.arange(200), values)
        evidence = _of_two(rows)
        rejected += differences(evidence)["p"].iloc[0] < 0.05
    assert rejected <= 8
    better = RowValues(rows.seed, rows.party, rows.row, {"A": np.ones(200), "B": values["B"]})
    shown = differences(_of_two(better))
    assert shown["p"].iloc[0] < 0.01
    assert shown["low"].iloc[0] > 0


def test_ranks_are_those_of_demsar():
    """Table 6 of the paper compares 4 classifiers on 14 data sets: the critical difference is 2.569 sqrt(20 / 84)."""
    assert critical_difference(4, 14) == pytest.approx(2.569 * np.sqrt(20 / 84), rel=1e-3)
    scores = pd.DataFrame(np.random.default_rng(0).normal([0, 0, 3, 3.2], size=(14, 4)), columns=list("ABCD"))
    scores.loc[0, ["A", "B"]] = 1.0
    ranks = rank_methods(scores, higher_is_better=True)
    expected = stats.rankdata(-scores, axis=1).mean(axis=0)
    assert ranks.mean[list("ABCD")].tolist() == pytest.approx(expected.tolist())
    assert ranks.p_value == stats.friedmanchisquare(*scores.to_numpy().T).pvalue
    assert [set(group) for group in ranks.groups] == [{"C", "D"}, {"A", "B"}]
    assert np.isnan(rank_methods(scores.iloc[:1], higher_is_better=True).critical_difference)


def _of_two(rows):
    """The measurements of methods A and B at sites a and b."""
    return Evidence(score="accuracy", split="test", higher_is_better=True, methods=("A", "B"), alone=None,
                    parties=["a", "b"], metrics=pd.DataFrame(), seeds=(0,), rows=rows)


def evidence_of(curves, *, score="accuracy", higher=True, parties=1):
    """The measurements of {method: score by round}, with the parties k = 0, 1, ... at 1/(k + 1) of the score."""
    rows = [(m, 0, r, k, "test", score, v / (k + 1)) for m, values in curves.items() for r, v in enumerate(values)
            for k in range(parties)]
    metrics = pd.DataFrame(rows, columns=["method", "seed", "round", "party", "split", "metric", "value"])
    return Evidence(score=score, split="test", higher_is_better=higher, methods=tuple(curves), alone=None,
                    parties=[f"site {k}" for k in range(parties)], metrics=metrics, seeds=(0,),
                    traffic=dict.fromkeys(curves, 300.0))


def evidence_of_seeds(scores, **facts):
    """The last scores of {method: score of each seed} at one site, and with ``rows`` twenty test rows of each seed."""
    metrics = pd.DataFrame([(m, seed, 1, 0, "test", "accuracy", v) for m, values in scores.items()
                            for seed, v in enumerate(values)],
                           columns=["method", "seed", "round", "party", "split", "metric", "value"])
    return Evidence(score="accuracy", split="test", higher_is_better=True, alone=None, parties=["site"],
                    methods=tuple(m for m in scores if m != "majority"), metrics=metrics, seeds=(0, 1, 2), **facts)


@pytest.mark.parametrize(("scores", "has_rows", "reason"), [
    ({"A": [1.0, 1.0, 0.4], "B": [0.75, 0.8, 0.7], "C": [0.7, 0.7, 0.75], "majority": [0.6] * 3}, True,
     "with seed 2 its accuracy is worse than that of the majority"),
    ({"A": [0.99, 0.99, 0.61], "B": [0.8, 0.801, 0.8], "C": [0.7, 0.701, 0.703]}, False,
     "the standard deviation of its accuracy over the seeds is 21.9%, and that of the others 0.1%"),
    ({"A": [1.0, 1.0, 0.55], "B": [0.75, 0.8, 0.7], "C": [0.7, 0.7, 0.75], "majority": [0.6] * 3}, True, None),
    ({"A": [0.9, 0.9, 0.89], "B": [0.8, 0.8001, 0.8], "C": [0.7, 0.7, 0.7]}, False, None),
], ids=["below the majority", "spread", "one row below it", "a small spread"])
def test_a_method_that_collapsed_is_marked_and_never_the_best(scores, has_rows, reason):
    """A has the best mean of all in each case."""
    from resolvent.comparisons.judgement.row_values import RowValues

    keys = np.repeat(np.arange(3), 20), np.zeros(60, int), np.tile(np.arange(20), 3)
    values = {m: np.concatenate([np.arange(20) < round(20 * v) for v in of_seeds]).astype(float)
              for m, of_seeds in scores.items()}
    facts = {"rows": RowValues(*keys, values), "baseline": "majority"} if has_rows else {}
    part = SimpleNamespace(evidence=evidence_of_seeds(scores, **facts))
    study = _Parts({"digits": part})
    marks = study.table(by="seeds").set_index("method")["mark"]
    markdown, paragraph = str(study.table("markdown", by="seeds")), study.paragraph(by="seeds")
    if reason is None:
        assert marks["A"] == "best"
        assert "(collapsed)" not in markdown
        assert "A has the best mean" in paragraph
        return
    assert marks.tolist()[:2] == ["collapsed", "best"]
    assert re.search(r"\| A \| \d\d.\d ± \d\d.\d \(collapsed\) \|", markdown)
    assert "B has the best mean" in paragraph
    assert paragraph.count("collapsed") == 1
    assert f"A collapsed: {reason}" in paragraph


def test_a_score_that_is_defined_at_no_site_is_named():
    evidence = replace(evidence_of({"A": [1.0], "B": [0.5]}), score="roc_auc")
    study = _Parts({"digits": SimpleNamespace(evidence=evidence)})
    for read in (study.table, study.costs, study.fairness):
        with pytest.raises(InputError, match=r"no site has a roc auc of its test rows.*decide_by"):
            read()


def test_costs_to_a_target():
    curves = {"A": [0.0, 0.5, 0.9, 1.0], "B": [0.0, 0.2, 0.4, 0.8], "C": [0.1, np.nan, np.nan, np.nan]}
    table = costs(evidence_of(curves), 90).set_index("method")
    assert table.loc["A", ["reached", "rounds", "bytes"]].tolist() == [1, 2, 200]
    assert table.loc["B", ["reached", "rounds", "bytes"]].tolist() == [0, np.inf, np.inf]
    assert table.loc["C", "rounds"] == np.inf
    assert table["seconds"].isna().all()
    assert table.loc["A", "area"] == pytest.approx((0.25 + 0.7 + 0.95) / 3)
    losses = costs(evidence_of({"A": [3.0, 1.0], "B": [3.0, 2.0]}, score="loss", higher=False)).set_index("method")
    assert losses["target"].tolist() == [2.0, 2.0]
    assert losses["rounds"].tolist() == [1, 1]
    assert costs(evidence_of(curves))["target"].tolist() == [0.8] * 3  # not 0.1, the last score of the worst method
    for target, message in ((0.9, r"in percent here.* write 90"), (101, r"0.0% and 100.0%"), (-5, "no run can")):
        with pytest.raises(InputError, match=message):
            costs(evidence_of(curves), target)


@pytest.mark.when_changed
def test_settings_of_one_data_set_are_one_block_of_ranks(study):
    """Twelve settings with the same rows and seeds are no twelve data sets."""
    part, other = study.parts.values()
    of_settings = _Parts({f"mu={k}": part for k in range(12)})
    assert of_settings.ranks("data").blocks == 1
    assert of_settings.ranks().blocks == len(part.evidence.parties)
    assert not of_settings.has_ranks
    assert "data sets, the mean ranks" not in of_settings.paragraph()
    assert _Parts({"a": part, "b": part, "c": other}).ranks().blocks == 2
    assert study.has_ranks


class _Parts(StudyReadings):
    def __init__(self, parts):
        self._parts = parts

    @property
    def parts(self):
        return self._parts


def test_fairness_over_the_parties():
    equal, unequal = np.full(7, 0.3), np.array([0.0] * 9 + [1.0])
    assert (gini(equal), entropy(equal)) == pytest.approx((0, 1))
    assert (gini(unequal), entropy(unequal)) == pytest.approx((0.9, 0))
    assert np.isnan(gini(np.array([-1.0, 2.0])))
    assert np.isnan(entropy(np.array([1.0, np.inf])))
    assert worst_decile(np.arange(20.0)) == 0.5
    assert worst_decile(np.arange(20.0), higher_is_better=False) == 18.5
    table = fairness(evidence_of({"A": [1.0, 1.0]}, parties=2))
    assert table[["mean", "worst", "gini"]].iloc[0].tolist() == pytest.approx([0.75, 0.5, 1 / 6])


def test_tables_escape_names(hostile):
    for name in [*hostile, "a|b*_`", "50 % & {x}^2~\\"]:
        rows = [[(name, "best"), ("1", "second")]]
        page = text_table(["method", name], rows, "html", name)
        assert "<script" not in page
        assert "<strong>" in page
        latex = text_table(["method", name], rows, "latex", name)
        body = re.sub(r"\\textbackslash\{\}|\\text\w+\{\}|\\[&%$#_{}]|\$[<>]\$|\$-\$", "", latex)
        assert not re.search(r"[#%~^]", body)
        assert body.count("{") == body.count("}")
        lines = text_table(["method", name], rows, "markdown", name).splitlines()
        assert len(re.findall(r"(?<!\\)\|", lines[2])) == 3


@pytest.mark.when_changed
def test_what_cannot_be_read_is_refused(study, tmp_path):
    with pytest.raises(rv.InputError, match=r"there is no method 'FedAvgg'.*did you mean 'FedAvg'"):
        study.differences("FedAvgg")
    with pytest.raises(rv.InputError, match="there is no data set 'digit 3'"):
        study.plot(data="digit 3")
    with pytest.raises(rv.InputError, match="there is no finished run"):
        rv.Study({"digits": tmp_path})
    with pytest.raises(rv.InputError, match="there is no data set"):
        rv.Study({})
