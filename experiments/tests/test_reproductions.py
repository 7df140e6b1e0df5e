"""The shipped reproductions: all of them bind, their claims name what is there, and the committed page is current."""

import json
import re
import subprocess
import sys
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import pytest

from experiments.claims import items_of, rules_of
from experiments.reproduction import Reproduction, reproductions
from experiments.results import page, shown_records, write_results
from experiments.run import reproduce
from experiments.search import experiment_of_trials, is_searched
from resolvent.errors import InputError

RESULTS = Path(__file__).parents[1] / "results"
_OTHER_AXES = ("line", "model_change", "start_change", "wealth_by_day")  # measures of single rounds, or by day
REAL = {"cifar10", "emnist", "fashion_mnist", "leaf", "mnist", "prices", "sentiment", "shakespeare", "stackexchange"}


load = lru_cache(Reproduction.load)


@cache  # more panels than the default size of lru_cache, and all tests read them in the same order
def experiments_of(name, title, seed, setting):
    """A panel's experiments: binding them takes most of the time of these tests."""
    reproduction = load(name).restricted_to(setting)
    return reproduction.experiments(title, seed, reproduction.changes(setting, title))


def check_panels(name, seed, setting):
    reproduction = load(name).restricted_to(setting)
    for title in reproduction.panels_with_runs:
        stated = reproduction.settings_of(title)
        for experiment in experiments_of(name, title, seed, setting):
            settings = experiment.file.bound.settings()
            assert list(experiment.points) == list(settings["algorithms"])
            seeds = {part["seed"] for key in ("problem", "data") if "seed" in (part := settings.get(key) or {})
                     and "seed" not in (stated.get(key) or {})}
            assert {settings["seed"], *seeds} == {seed}  # the seed changes the data as well


@pytest.mark.parametrize("name", reproductions())
def test_every_panel_binds(name):
    check_panels(name, 0, "paper scale")


@pytest.mark.nightly
@pytest.mark.parametrize("name", reproductions())
def test_every_panel_binds_with_the_changes_of_the_small_settings(name):
    check_panels(name, 1, "tiny")  # the tiny setting has the changes of the quick one


@pytest.mark.nightly
@pytest.mark.parametrize("name", reproductions())
def test_no_method_refuses_a_value_of_its_search(name):
    reproduction = load(name)
    if reproduction.search is None:
        pytest.skip("it searches nothing")
    for title in reproduction.panels_with_runs:
        if is_searched(reproduction, title):
            assert experiment_of_trials(reproduction, title, "paper scale").points


@pytest.mark.parametrize("name", reproductions())
def test_claims_name_rules_panels_and_methods_of_the_figure(name):
    reproduction = load(name)
    labels = {title: set(_labels(reproduction, title)) for title in reproduction.panels}
    for says, (_, rule, read, args) in ((c.says, reading) for c in reproduction.claims for reading in c.all_readings()):
        assert rule in rules_of(name)
        panels = [*args.get("panels", ())]
        losses = {} if read.stopped is None else read.stopped.losses
        assert {*panels, *losses.values()} <= set(reproduction.panels), says
        assert not losses or losses.keys() >= set(panels), says
        for method in args.get("methods") or ():
            assert all(method in labels[title] for title in panels), (says, method)


def _labels(reproduction, title):
    source = reproduction.panels[title].of or title
    points = [pair for experiment in experiments_of(reproduction.name, source, 0, "paper scale")
              for pair in experiment.points.items()]
    methods = [name for label, point in points for name in (label, point.get("method"))]
    return methods + reproduction.view(title).baselines


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("name", reproductions())
def test_each_runs_for_two_rounds_at_tiny_size(name, tmp_path, request, monkeypatch):
    reproduction = Reproduction.load(name)
    used = REAL & {(reproduction.settings_of(title).get("data") or {}).get("name") for title in reproduction.panels}
    folder = request.getfixturevalue("real_data") if used else None
    if "cifar10" in used:
        _unpack_cifar10(folder, tmp_path, monkeypatch)
    record = reproduce(reproduction, setting="tiny")
    assert set(record["panels"]) == set(reproduction.restricted_to("tiny").panels)
    assert [c["says"] for c in record["claims"]] == [c.says for c in reproduction.restricted_to("tiny").claims]
    for panel in record["panels"].values():
        for method in panel["methods"].values():
            if not panel["measure"].startswith(_OTHER_AXES):
                assert method["rounds"][0] == 0
                assert method["rounds"][-1] == 2
            assert method["mean"][-1] == pytest.approx(method["final"]["mean"], rel=1e-3)
    path = write_results(record, tmp_path)
    assert path.with_suffix(".svg").read_text().startswith("<?xml")
    assert all(claim["says"] in (tmp_path / "README.md").read_text() for claim in record["claims"])


def _unpack_cifar10(folder, target, monkeypatch):
    """CIFAR-10 in its standard format; the folder of real data may have it packed."""
    if (folder / "unpack_cifar10.py").is_file():
        subprocess.run([sys.executable, folder / "unpack_cifar10.py", target], check=True, capture_output=True)
        monkeypatch.setenv("RESOLVENT_DATA", str(target))


def test_an_important_number_with_many_readings_states_how_many_have_each_verdict():
    for record in shown_records(RESULTS).values():
        for claim in record["claims"]:
            if claim["headline"] and len(items_of(claim)) > 9:
                (row,) = [line for line in page(RESULTS).splitlines() if line.startswith(f"| {claim['headline']} (")]
                counts = dict(re.findall(r"(holds in part|holds|does not hold) in (\d+) of", row))
                verdicts = [reading["verdict"] for reading in claim["readings"]]
                assert counts == {v: str(verdicts.count(v)) for v in set(verdicts)}


@pytest.mark.nightly
@pytest.mark.parametrize(("title", "expected"), [
    ("EMNIST", (200, 7_492, 37, 17)),  # the paper: 200, 18,345, 92, 159
    ("Shakespeare", (143, 1_031_384, 7_212, 2_450)),  # the paper: 143, 517,106, 3,616, 6,808
    ("sentiment", (53, 732, 14, 5)),  # the paper: 772, 40,783, 53, 32
])
def test_table_1_of_fedprox_on_the_substitutes(title, expected, real_data):
    """Devices, samples, and the mean and standard deviation of the samples of a device."""
    (experiment,) = Reproduction.load("fedprox-accuracy").experiments(title, 0)
    data = experiment.file.bound.parts["data"].build()
    samples = sum(np.asarray(data.sizes(split)) for split in data.splits)
    assert (len(samples), samples.sum(), round(samples.mean()), round(samples.std())) == expected


def test_steps_of_fedmix_are_inversely_proportional_to_alpha_squared():
    """gamma0/alpha^2, with one gamma0 for each problem."""
    reproduction = Reproduction.load("fedmix-compression")
    assert {name for name in reproductions() if name.startswith("fedmix-")} >= {
        "fedmix-compression", "fedmix-sines", "fedmix-text"}
    for panel in reproduction.panels.values():
        if panel.sweep:
            steps = [p["rate"] * p["alpha"]**2 for p in panel.sweep.points()]
            assert steps == pytest.approx([steps[-1]] * len(steps))


def test_an_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"there is no reproduction 'splitting-anderso'.*splitting-anderson"):
        Reproduction.load("splitting-anderso")


def test_the_command(call, tmp_path, monkeypatch):
    committed = RESULTS / "splitting-anderson.json"
    record = json.loads(committed.read_text(encoding="utf-8"))
    monkeypatch.setattr("experiments.run.reproduce", lambda *_, **__: record)
    outcome = call("splitting-anderson", "--out", "results", cwd=tmp_path)
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "results" / committed.name).read_bytes() == committed.read_bytes()
    for claim in record["claims"]:
        assert f"{claim['verdict']}: {claim['says']}" in outcome.out
    picture = (tmp_path / "results" / committed.name).with_suffix(".svg")
    assert picture.read_bytes() == committed.with_suffix(".svg").read_bytes()
    drawn = picture.read_text(encoding="utf-8")
    picture.write_text("gone", encoding="utf-8")
    assert "Drawn: results/splitting-anderson.svg" in call("redraw", "splitting-anderson", "--out", "results",
                                                           cwd=tmp_path).out
    assert picture.read_text(encoding="utf-8") == drawn
    none = call("redraw", "--out", "results", "splitting-sampling", cwd=tmp_path)
    assert none.code == 2
    assert "results has no results of splitting-sampling to draw" in none.err
    wrong = call("splitting", cwd=tmp_path)
    assert wrong.code == 2
    assert "there is no reproduction 'splitting'" in wrong.err
    for options in (("--quick", "--scale", "middle"), ("--jobs", "2", "--seeds", "1"), ("--resume", "fedmix-text")):
        assert call("splitting-anderson", *options, cwd=tmp_path).code == 2
