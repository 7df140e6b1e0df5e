"""Several reproductions at a time: their results, worse verdicts, and that a failure does not affect the others."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.batch import Known, Outcome, known_verdicts, run_batch, write_summary
from experiments.results import page
from resolvent.errors import InputError
from resolvent.files import write_sealed
from signals import heard_signals

RESULTS = Path(__file__).parents[1] / "results"
KNOWN = {("a", "x"): Known("holds"), ("a", "y"): Known("holds in part"), ("b", "x"): Known("does not hold")}
COPY = """
import shutil, sys, pathlib
name, source, folder = sys.argv[1:]
if name == "fails":
    print("something else")
    sys.exit("error: there are no data\\n")
for end in (".json", ".svg"):
    shutil.copy(pathlib.Path(source) / (name + end), folder)
"""


def copy_results(name, folder):
    """A command that copies the committed results, or fails."""
    return [sys.executable, "-c", COPY, name, str(RESULTS), str(folder)]


@pytest.mark.parametrize(("verdicts", "worse", "comparison"), [
    ({"x": "holds", "y": "holds in part"}, [], "ok"),
    ({"x": "holds", "y": "holds"}, [], "ok"),
    ({"x": "holds in part", "y": "does not hold"}, ["x", "y"], "WORSE: x (was: holds); y (was: holds in part)"),
    ({"x": "holds", "z": "does not hold"}, [], "ok, 1 not known"),
])
def test_a_verdict_that_got_worse_is_named(verdicts, worse, comparison):
    outcome = Outcome("a", 12.34, verdicts)
    assert outcome.differing_claims(KNOWN) == (worse, [])
    name, seconds, counts, compared = outcome.line(KNOWN).split("\t")
    assert (name, seconds, compared) == ("a", "12.3", comparison)
    assert sum(int(count.rsplit(" ", 1)[1]) for count in counts.split(", ")) == len(verdicts)


def claim(verdict, mean, std):
    item = {"name": "A", "mean": mean, "std": std, "holds": 1 if mean >= 0 else 0}
    return {"says": "x", "verdict": verdict, "readings": [{"choices": {}, "rule": "difference", "verdict": verdict,
                                                           "args": {"at_least": 0.0}, "items": [item]}]}


@pytest.mark.parametrize(("seeds", "std", "known", "expected"), [
    (2, 0.02, Known("holds"), "ok; borderline: x (was: holds)"),
    (2, 0.005, Known("holds"), "WORSE: x (was: holds)"),
    (1, 0.0, Known("holds", (0.02,)), "ok; borderline: x (was: holds)"),  # one seed: the known spread
    (1, 0.0, Known("holds", (0.005,)), "WORSE: x (was: holds)"),
    (1, 0.0, Known("holds"), "WORSE: x (was: holds)"),
    (1, 0.0, Known("not decided", (0.005,)), "ok"),
    (2, 0.005, Known("does not hold"), "ok"),
])
def test_a_borderline_verdict_is_neither_worse_nor_better(seeds, std, known, expected):
    outcome = Outcome("a", 1.0, {"x": "does not hold"}, records={"x": claim("does not hold", -0.01, std)}, seeds=seeds)
    assert outcome.line({("a", "x"): known}).split("\t")[-1] == expected


def test_missing_data_are_skipped(tmp_path, monkeypatch):
    """The command ends with the exit code that the batch reads, and the message names the file."""
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    (outcome,) = run_batch(["fedprox-mnist-peers"], tmp_path, scale="quick")
    assert outcome.line({}).split("\t")[2:] == ["-", f"skipped: no data: {outcome.missing}"]
    assert "there is no file" in outcome.missing
    assert not outcome.failure
    write_summary([outcome], tmp_path / "summary.tsv")
    assert (tmp_path / "summary.tsv").read_text().splitlines()[1].split("\t")[2] == "skipped"
    assert known_verdicts(tmp_path / "summary.tsv") == {}


def test_a_failure_says_its_last_line():
    assert Outcome("a", 1, {}, "error: no data").line(KNOWN) == "a\t1.0\t-\tFAILED: error: no data"


def test_each_runs_in_a_process_of_its_own(tmp_path):
    names = ["splitting-anderson", "fails", "splitting-sampling"]
    ran = {outcome.name: outcome for outcome in run_batch(names, tmp_path, scale="quick", jobs=2, command=copy_results)}
    assert set(ran) == set(names)
    assert ran["fails"].failure == "error: there are no data"
    assert ran["fails"].verdicts == {}
    for name in ("splitting-anderson", "splitting-sampling"):
        assert (tmp_path / f"{name}.json").read_bytes() == (RESULTS / f"{name}.json").read_bytes()
        assert (tmp_path / f"{name}.svg").is_file()
        record = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        assert ran[name].verdicts == {claim["says"]: claim["verdict"] for claim in record["claims"]}
        assert ran[name].differing_claims(known_verdicts(RESULTS)) == ([], [])
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == page(tmp_path)
    assert "something else" in (tmp_path / "runs" / "fails" / "log.txt").read_text()


@pytest.mark.nightly
def test_default_command_is_the_command_line(tmp_path):
    (outcome,) = run_batch(["nonsense"], tmp_path, scale="quick")
    assert outcome.failure.startswith("error: there is no reproduction 'nonsense'; there are ")


def test_a_summary_can_be_read(tmp_path):
    ran = [Outcome("b", 5.4, {"says \"so\"\tand more": "holds in part"}), Outcome("a", 1, {}, "error: no data")]
    write_summary(ran, tmp_path / "summary.tsv")
    first, *rows = (tmp_path / "summary.tsv").read_text().splitlines()
    assert first.split("\t") == ["name", "seconds", "verdict", "spreads", "claim"]
    assert rows[0].split("\t") == ["a", "1", "failed", "", "error: no data"]
    known = {("b", "says \"so\"\tand more"): Known("holds in part")}
    assert known_verdicts(tmp_path / "summary.tsv") == known
    spreads = {("b", "says \"so\"\tand more"): Known("holds", (0.25, None))}
    write_summary(ran, tmp_path / "summary.tsv", spreads)  # after one seed, the known spreads
    assert known_verdicts(tmp_path / "summary.tsv") == {
        ("b", "says \"so\"\tand more"): Known("holds in part", (0.25, None))}


def test_verdicts_of_the_quick_setting_take_precedence(tmp_path):
    for stem, setting, verdict, seeds in (("a-quick", "quick", "holds in part", 1), ("a", "paper scale", "holds", 3)):
        record = {"name": "a", "setting": setting, "seeds": seeds, "claims": [claim(verdict, 0.1, 0.25)]}
        write_sealed(tmp_path / f"{stem}.json", record)
    assert known_verdicts(tmp_path) == {("a", "x"): Known("holds in part", (0.25,))}


def test_damaged_results_are_refused_by_name(call, tmp_path):
    """Whatever reads them: a page, a picture, a comparison, a batch, or a reproduction that would run for hours."""
    for end in (".json", ".svg"):
        shutil.copy(RESULTS / f"splitting-sampling{end}", tmp_path)
    path, picture = tmp_path / "splitting-sampling.json", (tmp_path / "splitting-sampling.svg").read_bytes()
    content = path.read_bytes()
    digit = content.index(b'"mean": 0.') + len(b'"mean": 0.')
    for damaged in (content[:digit] + bytes([content[digit] ^ 1]) + content[digit + 1:], content[:digit], b"", b"[]",
                    b"\xff", b"9" * 5000):
        path.write_bytes(damaged)
        for read in (page, known_verdicts, lambda folder: next(run_batch(["a"], folder, scale="quick"))):
            with pytest.raises(InputError, match=r"splitting-sampling.json.*run the reproduction again"):
                read(tmp_path)
        outcome = call("redraw", "splitting-sampling", "--out", ".", cwd=tmp_path)
        assert (outcome.code, outcome.out) == (2, "")
    assert "splitting-sampling.json" in call("splitting-sampling", "--out", ".", cwd=tmp_path).err
    assert (tmp_path / "splitting-sampling.svg").read_bytes() == picture
    summary = tmp_path / "summary.tsv"
    write_summary([Outcome("a", 1, {"x": "holds"}), Outcome("b", 1, {}, "no data")], summary)
    whole = summary.read_bytes()
    for damaged in (whole.replace(b"holds", b"hodds"), whole.replace(b"\tx", b"x"), whole + b"\xff", whole[:-12],
                    b"", whole.replace(b"name", b"nane"), b"\x00"):
        summary.write_bytes(damaged)
        with pytest.raises(InputError, match=r"summary.tsv"):
            known_verdicts(summary)


def test_an_interrupted_batch_ends_its_processes(tmp_path):
    """A process that would run for an hour is ended, and no other begins."""
    sleep = [sys.executable, "-c", "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(3600)"]
    batch = run_batch(["a", "b"], tmp_path, scale="quick", jobs=1,
                      command=lambda name, out: [*sleep, str(out / "began")])
    thread = threading.Thread(target=interrupt_after, args=(tmp_path / "runs" / "a" / "began",))
    thread.start()
    with heard_signals(), pytest.raises(KeyboardInterrupt):
        next(batch)
    thread.join()
    assert not (tmp_path / "runs" / "b").exists()


def interrupt_after(path):
    while not path.exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


def test_what_cannot_be_compared_or_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no known verdicts at .*none.tsv: give a results folder"):
        known_verdicts(tmp_path / "none.tsv")
    (tmp_path / "other.tsv").write_text("a\tb\n1\t2\n")
    with pytest.raises(InputError, match="is not a summary: its columns must be name, seconds"):
        known_verdicts(tmp_path / "other.tsv")
    with pytest.raises(InputError, match="jobs=0 must be at least 1"):
        next(run_batch(["a"], tmp_path, scale="quick", jobs=0))


def test_the_script_compares_and_fails_where_a_verdict_got_worse(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = [Outcome("splitting-anderson", 3.0, {"x": "holds in part"}),
           Outcome("splitting-sampling", 4.0, {"y": "holds"})]
    monkeypatch.setattr("experiments.batch.run_batch",
                        lambda names, folder, **_: (outcome for outcome in ran))
    write_summary([Outcome("splitting-anderson", 1, {"x": "holds"})], tmp_path / "known.tsv")
    arguments = ("splitting-anderson", "splitting-sampling", "--out", ".", "--jobs", "2")
    assert main([*arguments, "--against", "known.tsv"]) == 1
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["splitting-anderson", "3.0", "holds in part 1", "WORSE: x (was: holds)"]
    assert lines[1] == ["splitting-sampling", "4.0", "holds 1", "ok, 1 not known"]
    assert lines[2] == ["summary.tsv"]
    assert known_verdicts(tmp_path / "summary.tsv") == {("splitting-anderson", "x"): Known("holds in part"),
                                                        ("splitting-sampling", "y"): Known("holds")}
    assert main([*arguments, "--against", "summary.tsv"]) == 0
    assert main(arguments) == 0
    ran.append(Outcome("splitting-cifar", 1.0, {}, missing="error: there is no file data_batch_1.bin"))
    assert main([*arguments, "--against", "summary.tsv"]) == 4
    assert main([*arguments, "--against", "known.tsv"]) == 1
    ran.append(Outcome("splitting-minibatch", 1.0, {}, "error: damaged"))
    assert main(arguments) == 1
    capsys.readouterr()
    assert main(["splitting-sample", "--jobs", "2"]) == 2
    assert "there is no reproduction 'splitting-sample'" in capsys.readouterr().err
