"""A small fixed part of the campaign, and its own parts. The tests of the data room run hostile tables."""

import os
import time
from pathlib import Path

import pytest

import nightly
from torture import campaign, corruption, inputs, kills, resources
from torture.disk import Disk
from torture.outcome import ENDED, REFUSED, RIGHT, SKIPPED, TRACEBACK, WRONG, Answer, Outcome, judge_refusal, table

SEED = 14
# Damage of a report, packed data and what is loaded; if something has changed, of an unfinished run, a run in host
# memory and trials; the others at night.
DAMAGES = [3, 6, 11, *(pytest.param(number, marks=pytest.mark.when_changed) for number in (0, 5, 13)),
           *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 2, 4, 7, 8, 9, 10, 12))]
FAULTS = ("files of at most 4000 bytes", "2 more open files", "out is a link to itself", "a checkpoint is a file",
          "a name of 300 characters", "the clock goes back", "summary.json is a folder, show",
          "the folder is removed while the run writes to it")


@pytest.mark.kill
@nightly.parametrize("number", range(8), per_commit=0)
def test_a_killed_run_is_resumed_to_the_same_result(number, tmp_path):
    outcome = kills.run_case(SEED, number, tmp_path)
    assert outcome.verdict == RIGHT, f"{outcome.case}: {outcome.detail}"


@pytest.mark.when_changed
@pytest.mark.parametrize("number", DAMAGES)
def test_a_damaged_file_is_refused_or_does_no_harm(number, tmp_path):
    outcome = corruption.run_case(SEED, number, tmp_path)
    assert outcome.verdict in (RIGHT, REFUSED), f"{outcome.case}: {outcome.detail}"


@pytest.mark.when_changed
@nightly.parametrize("name", FAULTS, per_commit=3, others=nightly.WHEN_CHANGED)
def test_a_missing_resource_is_named_in_one_line(name, tmp_path):
    outcome, = resources.run_case(name, tmp_path)
    assert outcome.verdict in (RIGHT, REFUSED, SKIPPED), outcome.detail


def test_a_task_without_an_end_is_a_failure(monkeypatch):
    monkeypatch.setitem(resources.CASES, "it waits", lambda case: time.sleep(3600))
    monkeypatch.setattr(campaign, "TASK_SECONDS", 0.2)
    monkeypatch.setattr(resources, "new_folder", lambda parent: Path(parent))
    outcome, = campaign.run_task(("resources", "it waits", 1, SEED))
    assert (outcome.verdict, outcome.detail) == (WRONG, "no end within 0.2 s")
    assert "--only resources --case 'it waits'" in outcome.case


def test_an_empty_environment_keeps_what_rounding_depends_on(monkeypatch):
    """Otherwise a machine whose kernels a variable chooses computes other last digits without it."""
    kept = {"OPENBLAS_CORETYPE": "Haswell", "OPENBLAS_L2_SIZE": "4 MB", "MKL_CBWR": "AVX2"}
    for name, value in {**kept, "OTHER": "1"}.items():
        monkeypatch.setenv(name, value)
    answer = kills.answer_of(["sh", "-c", f"env {resources.no_environment()} env"], Path.cwd())
    lines = answer.out.splitlines()
    assert {f"{name}={value}" for name, value in kept.items()} <= {*lines}
    assert not [line for line in lines if line.startswith(("OTHER=", "HOME="))]


def write_two_files(folder):
    """Six operations: make a folder, write two files, rename one and remove one."""
    (folder / "a").mkdir()
    (folder / "a" / "x").write_text("12345678")
    handle = os.open(folder / "a" / "y", os.O_WRONLY | os.O_CREAT)
    os.write(handle, b"abcd")
    os.close(handle)
    (folder / "a" / "x").rename(folder / "z")
    (folder / "a" / "y").unlink()


@pytest.mark.parametrize(("stop", "is_torn", "content"), [
    (0, False, {}), (1, False, {}), (2, False, {"a/x": "12345678"}), (2, True, {"a/x": "1234"}),
    (3, True, {"a/x": "12345678", "a/y": "ab"}), (4, False, {"a/x": "12345678", "a/y": "abcd"}),
    (5, False, {"z": "12345678", "a/y": "abcd"}), (6, False, {"z": "12345678"}),
])
def test_a_stop_leaves_what_was_written_before_it(stop, is_torn, content, tmp_path):
    (tmp_path / "work").mkdir()
    with Disk(tmp_path / "work", stop_at=stop, is_torn=is_torn, copy=tmp_path / "copy").watched() as disk:
        write_two_files(tmp_path / "work")
    assert disk.has_stopped == (stop < 6)
    folder = Path(tmp_path / ("copy" if disk.has_stopped else "work"))
    assert {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*") if p.is_file()} == content


@pytest.mark.parametrize(("answer", "verdict"), [
    (Answer(2, "", "error: x.json is damaged: start afresh\n"), REFUSED), (Answer(2, "", "error: damaged\n"), WRONG),
    (Answer(2, "", "error: x.json\nerror: y\n"), WRONG), (Answer(-11, "", "error: x.json\n"), WRONG),
    (Answer(1, "", "Traceback (most recent call last):\nerror: x.json\n"), TRACEBACK), (Answer(0, "", ""), WRONG),
])
def test_refusals_are_one_line_with_the_name_of_the_file(answer, verdict):
    assert judge_refusal(answer, ["x.json"])[0] == verdict


def test_the_table_counts_cases():
    outcomes = [Outcome("kills", "", RIGHT), Outcome("kills", "", WRONG), Outcome("tables", "", REFUSED, count=90),
                Outcome("tables", "", RIGHT, count=10), Outcome("faults", "", SKIPPED), Outcome("faults", "", ENDED)]
    assert table(outcomes)[2:] == [
        "| kills | 2 | 1 | 0 | 0 | 1 | 0 | 0 |", "| tables | 100 | 0 | 0 | 90 | 10 | 0 | 0 |",
        "| faults | 1 | 0 | 0 | 0 | 0 | 1 | 1 |", "| all | 103 | 1 | 0 | 90 | 11 | 1 | 1 |"]


def test_hostile_tables_are_counted(tmp_path):
    accepted, refused, *failures = inputs.run_cases(inputs.TABLES, "run_frames", 5, SEED, tmp_path)
    assert not failures
    assert accepted.count + refused.count == 5
