"""What is committed, at every commit: the records have the verdicts of their numbers, and the pages are current."""

import numpy as np

from experiments.claims import check, rules_of
from experiments.curves import Curve
from experiments.reproduction import Reproduction, reproductions
from experiments.results import RESULTS, page, read_records
from experiments.schema import Read
from resolvent.metrics import higher_is_better

STATED = {"says", "paper", "ours", "headline", "changed"}


def verdict(holds, seeds):
    """The verdict of items from the number of seeds in which each is as claimed."""
    return "holds" if sum(holds) == seeds * len(holds) else "does not hold" if not sum(holds) else "holds in part"


def test_every_record_has_the_claims_of_its_figure_and_the_verdicts_of_its_numbers():
    for path, record in read_records(RESULTS).items():
        assert path.with_suffix(".svg").is_file()
        reproduction = Reproduction.load(record["name"]).restricted_to(record["setting"])
        assert record["notes"] == reproduction.notes
        if "--panels" in record["command"]:
            reproduction = reproduction.with_panels([title for title, panel in reproduction.panels.items()
                                                     if title in record["panels"] and not panel.of])
        if "--seeds" not in record["command"]:
            assert record["seeds"] == reproduction.seeds_of(record["setting"])
        for claim, c in zip(record["claims"], reproduction.claims, strict=True):
            assert {key: claim[key] for key in STATED} == c.model_dump(include=STATED)
            stated = [{key: reading[key] for key in ("choices", "rule", "args")} for reading in claim["readings"]]
            assert stated == [{"choices": r.choices, "rule": r.rule, "args": r.args} for r in c.all_readings()]
            assert [Read(**reading["read"]) for reading in claim["readings"]] == [r.read for r in c.all_readings()]
            counts = [[item["holds"] for item in reading["items"]] for reading in claim["readings"]]
            assert [reading["verdict"] for reading in claim["readings"]] == [
                verdict(of_reading, record["seeds"]) for of_reading in counts]
            expected = verdict([n for of_reading in counts for n in of_reading], record["seeds"])
            if record["setting"] in {False: (), True: ("quick",), "paper scale": ("quick", "middle")}[c.converged]:
                expected = "not decided"
            assert claim["verdict"] == expected


# The records have curves of at most 60 points, as means over the seeds, and no numbers of single parties.
NEEDS_PARTIES = {"average_rises", "better", "better_of_panels", "gains_grow", "survives_deflation"}
NEEDS_ALL_POINTS = {
    ("fedplus-portfolio", "difference_of_panels"),  # differences of 1e-8, below the digits of a curve
    ("fedprox-accuracy-middle", "difference"), ("fedprox-divergence", "largest_growth"),
    ("fedprox-divergence", "ratio"), ("fedprox-fig1-text-middle", "ratio"), ("splitting-fedrp-schedules", "sooner"),
    ("splitting-sampling", "climb")}


def curves_of(record):
    """The curves of a record, as means over the seeds."""
    def numbers(values):
        return np.array([np.inf if value is None else value for value in values], float)

    stated = {"point", "first", "final", "rounds", "mean", "low", "high"}
    return {title: {label: Curve(np.array(m["rounds"]), numbers(m["mean"]), m["point"],
                                 {name: numbers(axis) for name, axis in m.items() if name not in stated})
                    for label, m in panel["methods"].items()} for title, panel in record["panels"].items()}


def test_judging_the_stored_curves_again_gives_the_committed_verdicts():
    """Of every number on whose verdict all seeds agree; a rule of a figure, or a common one, has not changed."""
    same, differing = 0, set()
    for path, record in read_records(RESULTS).items():
        curves, rules = curves_of(record), rules_of(record["name"])
        for reading in (reading for claim in record["claims"] for reading in claim["readings"]):
            if reading["rule"] in NEEDS_PARTIES:
                continue
            items = check(reading["rule"], curves, Read(**reading["read"]), rules=rules, **reading["args"])
            holds = {item.name: item.holds for item in items}
            for item in reading["items"]:
                if item["holds"] not in (0, record["seeds"]) or item["name"] not in holds:
                    continue
                if holds[item["name"]] == (item["holds"] > 0):
                    same += 1
                else:
                    differing.add((path.stem, reading["rule"]))
    assert differing == NEEDS_ALL_POINTS
    assert same > 850


def test_the_pages_are_those_of_the_committed_numbers():
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == page(RESULTS)
    readme = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert "| all | 103 | 86 | 41 | 3 | 62 |" in readme


def test_the_command_lists_the_figures(call, tmp_path):
    listed = call("list", cwd=tmp_path).out
    assert [line.split()[0] for line in listed.splitlines()] == list(reproductions())


def test_every_measure_of_a_panel_has_a_direction():
    """Without it the pictures cannot be drawn again."""
    measures = {panel["measure"] for record in read_records(RESULTS).values() for panel in record["panels"].values()
                if "measure" in panel}
    assert len(measures) > 8
    assert higher_is_better("line_previous") is False  # a loss
    assert {higher_is_better(measure) for measure in measures} == {True, False}
