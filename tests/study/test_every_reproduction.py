"""All reproductions at once: what each leaves, what got worse, and that one which dies takes nothing with it."""

import json
import sys
from pathlib import Path

import pytest

from resolvent.errors import InputError
from resolvent.study.every import Ran, known_verdicts, run_every, write_summary
from resolvent.study.results import page

RESULTS = Path(__file__).parents[2] / "results"
KNOWN = {("a", "x"): "holds", ("a", "y"): "holds in part", ("b", "x"): "does not hold"}
COPY = """
import shutil, sys, pathlib
name, source, place = sys.argv[1:]
if name == "dies":
    print("something else")
    sys.exit("error: there are no data\\n")
for end in (".json", ".svg"):
    shutil.copy(pathlib.Path(source) / (name + end), place)
"""


def copying(name, place):
    """In place of a reproduction: its committed results, or its death."""
    return [sys.executable, "-c", COPY, name, str(RESULTS), str(place)]


@pytest.mark.parametrize(("verdicts", "worse", "came"), [
    ({"x": "holds", "y": "holds in part"}, [], "ok"),
    ({"x": "holds", "y": "holds"}, [], "ok"),
    ({"x": "holds in part", "y": "does not hold"}, ["x", "y"], "WORSE: x (was: holds); y (was: holds in part)"),
    ({"x": "holds", "z": "does not hold"}, [], "ok, 1 not known"),
])
def test_a_verdict_that_got_worse_is_named(verdicts, worse, came):
    one = Ran("a", 12.34, verdicts)
    assert one.worse(KNOWN) == worse
    name, seconds, counts, said = one.line(KNOWN).split("\t")
    assert (name, seconds, said) == ("a", "12.3", came)
    assert sum(int(count.rsplit(" ", 1)[1]) for count in counts.split(", ")) == len(verdicts)


def test_a_failure_says_its_last_line():
    assert Ran("a", 1, {}, "error: no data").line(KNOWN) == "a\t1.0\t-\tFAILED: error: no data"


def test_each_runs_in_a_process_of_its_own(tmp_path):
    names = ["splitting-anderson", "dies", "splitting-sampling"]
    ran = {one.name: one for one in run_every(names, tmp_path, quick=True, jobs=2, command=copying)}
    assert set(ran) == set(names)
    assert ran["dies"].failure == "error: there are no data"
    assert ran["dies"].verdicts == {}
    for name in ("splitting-anderson", "splitting-sampling"):
        assert (tmp_path / f"{name}.json").read_bytes() == (RESULTS / f"{name}.json").read_bytes()
        assert (tmp_path / f"{name}.svg").is_file()
        record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert ran[name].verdicts == {claim["says"]: claim["verdict"] for claim in record["claims"]}
        assert not ran[name].worse(known_verdicts(RESULTS))
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page(tmp_path)
    assert "something else" in (tmp_path / "runs" / "dies" / "log.txt").read_text()


def test_without_another_command_it_is_the_command_line(tmp_path):
    one, = run_every(["nonsense"], tmp_path, quick=True)
    assert one.failure.startswith("error: there is no reproduction 'nonsense'; there are ")


def test_a_summary_is_read_again(tmp_path):
    ran = [Ran("b", 5.4, {"says \"so\"\tand more": "holds in part"}), Ran("a", 1, {}, "error: no data")]
    write_summary(ran, tmp_path / "summary.tsv")
    first, *rows = (tmp_path / "summary.tsv").read_text().splitlines()
    assert first.split("\t") == ["name", "seconds", "verdict", "claim"]
    assert rows[0].split("\t") == ["a", "1", "failed", "error: no data"]
    assert known_verdicts(tmp_path / "summary.tsv") == {("b", "says \"so\"\tand more"): "holds in part"}


def test_the_small_settings_verdicts_go_before_the_papers(tmp_path):
    for stem, setting, verdict in (("a-quick", "quick", "holds in part"), ("a", "paper scale", "holds")):
        record = {"name": "a", "setting": setting, "claims": [{"says": "x", "verdict": verdict}]}
        (tmp_path / f"{stem}.json").write_text(json.dumps(record))
    assert known_verdicts(tmp_path) == {("a", "x"): "holds in part"}


def test_what_cannot_be_compared_or_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no known verdicts at .*none.tsv: give a folder"):
        known_verdicts(tmp_path / "none.tsv")
    (tmp_path / "other.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(InputError, match="is no summary: its columns must be name, seconds"):
        known_verdicts(tmp_path / "other.tsv")
    with pytest.raises(InputError, match="jobs=0 must be at least 1"):
        next(run_every(["a"], tmp_path, quick=True, jobs=0))


def test_the_command_compares_and_fails_where_one_got_worse(call, tmp_path, monkeypatch):
    ran = [Ran("splitting-anderson", 3.0, {"x": "holds in part"}), Ran("splitting-sampling", 4.0, {"y": "holds"})]
    monkeypatch.setattr("resolvent.study.every.run_every", lambda names, folder, **_: iter(ran))
    write_summary([Ran("splitting-anderson", 1, {"x": "holds"})], tmp_path / "known.tsv")
    arguments = ("reproduce", "splitting-anderson", "splitting-sampling", "--out", ".", "--jobs", "2")
    outcome = call(*arguments, "--against", "known.tsv", cwd=tmp_path)
    assert outcome.code == 1
    lines = [line.split("\t") for line in outcome.out.splitlines()]
    assert lines[0] == ["splitting-anderson", "3.0", "holds in part 1", "WORSE: x (was: holds)"]
    assert lines[1] == ["splitting-sampling", "4.0", "holds 1", "ok, 1 not known"]
    assert lines[2] == ["summary.tsv"]
    assert known_verdicts(tmp_path / "summary.tsv") == {("splitting-anderson", "x"): "holds in part",
                                                        ("splitting-sampling", "y"): "holds"}
    assert call(*arguments, "--against", "summary.tsv", cwd=tmp_path).code == 0
    assert call(*arguments, cwd=tmp_path).code == 0
    assert "there is no reproduction 'splitting-sample'" in call("reproduce", "splitting-sample", "--jobs", "2",
                                                                 cwd=tmp_path).err
    nothing = call("reproduce", cwd=tmp_path)
    assert nothing.code == 2
    assert "say what to reproduce, or --all: " in nothing.err
