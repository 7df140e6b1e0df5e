"""The command line: exit codes and output."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from catalogue import listings
from resolvent.cli.outcomes import print_outcome, print_record
from resolvent.cli.parsing import COMMANDS, GROUPS
from resolvent.comparisons.experiment.experiment_file import ExperimentFile, experiments
from resolvent.comparisons.judgement.wording import advice_of
from resolvent.comparisons.runs import runner
from resolvent.comparisons.runs.first_screen import first_screen
from resolvent.comparisons.runs.record import DataRecord, MethodRecord, RunRecord, read_record
from resolvent.errors import InputError
from resolvent.predict.intervals import Interval


def flat(text):
    """Text without line breaks, box drawing and repeated blanks."""
    return " ".join(re.sub(r"[│╭╮╰╯─━]", " ", text).split())


# ------------------------------------------------------------------------------------------------------------- codes

def test_done_is_0_and_the_outcome_fits_a_screen(finished):
    """At most 25 lines of 80 columns: counts, warnings, sites, the report's path and the next command."""
    outcome = finished.outcome
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    record = read_record(finished.folder)
    screen, text = first_screen(record), flat(outcome.out)
    for shown in (screen.facts, screen.headline, *(f"{number} {answer}" for answer, number in screen.counts.items())):
        assert shown in text
    for number, warning in enumerate(screen.warnings, 1):
        assert text.count(flat(warning)) == 1
        assert f"{number}. {warning[:20]}" in text
    for site in record.sites:
        (row,) = [line for line in lines if line.startswith(f"{site.name} ")]
        assert row.endswith(advice_of(site.advice))
        assert "●" in row
    assert lines[-2:] == ["Report: runs/small/report.html", "Next: resolvent show runs/small"]
    for name in record.methods:
        assert re.search(rf"{re.escape(name)} .*4/4 rounds", outcome.err)


@pytest.mark.parametrize("parties", [3, 200])
def test_many_sites_and_warnings_fit_a_screen_too(finished, parties, capsys):
    """Sites that should not join are shown first; warnings that have no room are counted."""
    record = read_record(finished.folder)
    sites = [site._replace(name=f"{'a very long name of a site ' * (k % 2)}{k}", advice=site.advice._replace(
        answer="unclear" if k == 1 else "join", expected=Interval(k / 100, 0, 1)))
        for k in range(parties) for site in record.sites[:1]]
    print_outcome(replace(record, sites=sites, warnings=[f"Warning {k} is {'long ' * 50}." for k in range(20)]),
                  Path("report.html"), next_command="resolvent show runs/small")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert any(re.fullmatch(r"and \d+ more warnings", line) for line in lines)
    assert sum(line.endswith(" unclear") and "●" in line for line in lines) == 1
    assert "200 sites" in " ".join(lines) or parties == 3


def test_a_site_far_from_all_others_is_at_the_end_of_the_axis(finished, capsys):
    record = read_record(finished.folder)
    sites = [site._replace(name=f"site {k}", advice=site.advice._replace(
        expected=Interval(gain, gain - 0.01, gain + 0.01), own=Interval(gain, gain - 0.02, gain + 0.02)))
        for k, gain in enumerate((0.3, 0.1, -0.05, -4.0)) for site in record.sites[:1]]
    assert first_screen(replace(record, sites=sites)).limits == pytest.approx((-40, 31), abs=2.1)
    assert first_screen(replace(record, sites=sites[:3])).limits == pytest.approx((-5, 30), abs=2.1)
    print_outcome(replace(record, sites=sites), Path("report.html"))
    rows = {line[:6]: line for line in capsys.readouterr().out.splitlines() if line.startswith("site ")}
    assert "◀" in rows["site 3"]
    assert all("●" in rows[f"site {k}"] for k in range(3))


def test_show_prints_every_warning_and_no_warning_repeats_the_headline(finished, capsys):
    record = read_record(finished.folder)
    warnings = [f"Warning {k} is {'long ' * 50}.".replace(" .", ".") for k in range(20)]
    print_record(replace(record, warnings=warnings))
    text = flat(capsys.readouterr().out)
    assert all(text.count(warning) == 1 for warning in warnings)
    twice = replace(record, finding="Nothing was learnt.", federation=None, warnings=["Nothing was learnt."])
    doubtful = replace(record, warnings=warnings, converged={"A": False}, rounds_to_try={"A": 40})
    first = first_screen(doubtful).warnings[0]
    assert first.startswith("A has not converged")
    assert first.endswith("Try rounds: 40.")
    assert first_screen(twice).headline == "Nothing was learnt."
    assert "Nothing was learnt." not in first_screen(twice).warnings


def test_an_untuned_reference_is_marked_in_the_tables_and_by_a_warning(finished, capsys):
    record = read_record(finished.folder)
    page = (finished.folder / "report.html").read_text()
    print_record(record)
    text = flat(capsys.readouterr().out)
    assert "alone is untuned" in text
    assert "alone (untuned)" in text
    assert "alone is untuned" in page
    assert page.count("alone (untuned)") >= 3  # two tables of scores, and that of the sites
    tuned = {"alone": replace(record.methods["alone"], is_untuned=False)}
    print_record(replace(record, warnings=[], methods={**record.methods, **tuned}))
    assert "untuned" not in capsys.readouterr().out
    label = next(m for m in record.methods if m != "alone")
    print_record(replace(record, collapsed={label: "with seed 0 its accuracy is worse"}))
    assert f"{label} (collapsed)" in flat(capsys.readouterr().out)


def test_show_prints_the_tables_with_the_numbers_of_the_summary(finished, call):
    out = call("show", "runs/small", cwd=finished.folder.parents[1]).out
    summary = json.loads((finished.folder / "summary.json").read_text())
    lines = out.splitlines()
    first = next(i for i, line in enumerate(lines) if "test accuracy at 5 sites" in line)
    for site in summary["sites"]:
        row = next(line for line in lines[:first] if line.strip().startswith(f"{site['name']} "))
        assert site["advice"]["answer"] in row
    lines = lines[first:]
    for name, method in summary["methods"].items():
        final = method["final"]
        row = next(line for line in lines if line.split("  ")[0].strip().removesuffix(" (untuned)") == name)
        shown = row.removeprefix(" ").removeprefix(name).removeprefix(" (untuned)").split()
        expected = ["-" if final[c] is None else f"{100 * final[c]:.1f}%"
                    for c in ("mean", "p10", "worst", "global mean", "global p10", "global worst")]
        expected += [] if name == summary["alone"] else [str(final[c]) for c in ("better", "level", "worse")]
        assert shown == expected


@pytest.mark.parametrize("columns", [80, 300])
def test_table_is_whole_at_any_width(columns, call, tmp_path, monkeypatch):
    final = {"mean": 0.123, "p10": 0.234, "worst": None, "global mean": 0.456, "global p10": 0.567,
             "global worst": 0.678, "better": 71, "level": 72, "worse": 73}
    label = "a label [of] [/many] words, longer than a narrow terminal is wide"
    record = RunRecord(seed=0, seeds=[0], score="accuracy", split="test", higher_is_better=True, alone="alone",
                       baseline=None, level=None, data=DataRecord("", ["a"], [9]), finding="[bold]Finding[/x].",
                       methods={label: MethodRecord(final)})

    def run(file, out, *, progress, notify, **options):
        progress("[/odd] label", 1, 2)
        return tmp_path / "[/red]", record

    monkeypatch.setattr(runner, "run_experiment", run)
    outcome = call("run", "digits", cwd=tmp_path, columns=columns)
    assert outcome.code == 0
    text = flat(outcome.out)
    for shown in ("12.3%", "23.4%", "diverged", "45.6%", "56.7%", "67.8%", "71", "72", "73", *label.split()):
        assert f" {shown} " in f" {text} "
    assert "[bold]Finding[/x]." in outcome.out
    assert re.search(r"\[/odd\] label .*1/2 rounds", outcome.err)
    assert outcome.out.splitlines()[-2].endswith("[/red]/report.html")


def test_wrong_input_is_2_and_names_what_is_allowed(call, tmp_path):
    outcome = call("run", "nope", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.out == ""
    error, = outcome.err.splitlines()
    assert error.startswith("error: there is no experiment 'nope'; there are ")
    for name in experiments():
        assert name in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_error_is_printed_as_it_is(call, tmp_path):
    """Text that looks like markup of the terminal library is printed."""
    outcome = call("show", "digits", "--set", "diagnostics=[lin]", cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err.startswith("error: --set diagnostics=[lin]: diagnostics.0: 'lin' is not a valid value")
    outcome = call("show", "digits", "--set", "title=[/red]", "rounds=[bold]x[/]", cwd=tmp_path)
    assert outcome.code == 2
    assert "[bold]x[/]" in outcome.err


@pytest.mark.parametrize(("arguments", "wanted"), [
    (["run", "digits", "--ronds", "3"], "--rounds"),
    (["run", "digits", "--overwite"], "--overwrite"),
    (["show", "digits", "--sett", "rounds=3"], "--set"),
])
def test_misspelt_option_suggests_the_right_one(arguments, wanted, call, tmp_path):
    outcome = call(*arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert arguments[2] in outcome.err
    assert f"Perhaps you meant: {wanted}" in flat(outcome.err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["frob"], ["run"], ["report"], ["list", "everything"],
                                       ["run", "digits", "--rounds", "many"]])
def test_incomplete_command_is_2(arguments, call, tmp_path):
    outcome = call(*arguments, cwd=tmp_path)
    assert outcome.code == 2
    assert outcome.err
    assert list(tmp_path.iterdir()) == []


def test_shortcuts_set_rounds_and_seed(call, tmp_path, monkeypatch):
    runs = []

    def stop(file, out, **options):
        runs.append((file.bound.settings(), out, options["resume"], options["overwrite"]))
        raise InputError("stop")

    monkeypatch.setattr(runner, "run_experiment", stop)
    assert call("run", "digits", "--rounds", 7, "--seed", 9, "--out", "here", "--resume", "--set", "title=x",
                "data.parties=5", "--set", "model.l2=1", cwd=tmp_path).code == 2
    settings, out, resume, overwrite = runs[0]
    assert (settings["rounds"], settings["seed"], settings["title"]) == (7, 9, "x")
    assert (settings["data"]["parties"], settings["model"]["l2"]) == (5, 1.0)
    assert (str(out), resume, overwrite) == ("here", True, False)
    assert call("run", "digits", "--overwrite", cwd=tmp_path).code == 2
    assert runs[1][1:] == (None, False, True)
    assert "error: --set rounds=0: rounds: 0 must be" in call("run", "digits", "--rounds", 0, cwd=tmp_path).err


def test_unexpected_error_is_not_hidden(call, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(runner, "run_experiment", fail)
    with pytest.raises(ZeroDivisionError, match="a defect"):
        call("run", "digits", cwd=tmp_path)


def test_interruption_names_the_option_to_resume(call, tmp_path, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "run_experiment", interrupt)
    outcome = call("run", "digits", cwd=tmp_path)
    assert outcome.code == 130
    assert "--resume" in outcome.err


@pytest.mark.when_changed
def test_failure_is_1_with_its_traceback(tmp_path):
    program = ("import sys, resolvent.comparisons.runs.runner as s\n"
               "def fail(*a, **k): raise ZeroDivisionError('a defect')\n"
               "s.run_experiment = fail\n"
               "sys.argv = ['resolvent', 'run', 'digits']\n"
               "from resolvent.cli import main\n"
               "main()")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert "ZeroDivisionError: a defect" in done.stderr


# ------------------------------------------------------------------------------------------------------------ prints

@pytest.mark.parametrize(("command", "wanted"), [
    ([], ["run", "list", "show", "model", "predict", "site", "lead"]),
    (["run"], ["NAME|FILE.yaml", "--set", "--rounds", "seeds=5", "--out", "--resume", "--overwrite"]),
    (["list"], ["algorithms", "data", "models", "solvers", "--format"]),
    (["show"], ["NAME|FILE.yaml", "RUN", "--set", "--redraw"]),
    (["data"], ["fetch", "check", "RESOLVENT_DATA"]),
    (["model", "predict"], ["RUN", "ROWS", "--site"]),
    (["site", "check"], ["KIT", "SITE.yaml", "--attack"]),
])
def test_help_mentions_every_option(command, wanted, call, tmp_path):
    outcome = call(*command, "--help", cwd=tmp_path)
    assert outcome.code == 0
    for word in wanted:
        assert word in outcome.out
    assert "None" not in outcome.out
    assert ("Exit codes" in outcome.out) == (not command)


def test_help_texts_begin_with_two_examples_and_fit_a_screen(call, tmp_path):
    """47 lines of 80 columns; an example, which is copied, may be longer. All have 80 options at most, ``-h`` aside."""
    commands = [[name] for name in COMMANDS] + [[group, verb] for group, (_, verbs) in GROUPS.items() for verb in verbs]
    wrong, options = [], 0
    for words in [[], *([group] for group in GROUPS), *commands]:
        outcome = call(*words, "--help", cwd=tmp_path, columns=80)
        lines = outcome.out.splitlines()
        examples = [line for line in lines[:12] if line.startswith("  resolvent ")]
        own = [line for line in examples if line.startswith(f"  resolvent {' '.join(words)}")]
        options += sum(re.match("(│ |  )--", line) is not None for line in lines)
        problems = {"lines": len(lines) > 47, "exit code": outcome.code, "None": "None" in outcome.out,
                    "width": max(map(len, {*lines[1:]} - {*examples})) > 80,
                    "examples": words in commands and (len(examples) != 2 or not own)}
        wrong += [(words, problem) for problem, is_wrong in problems.items() if is_wrong]
    assert wrong == []
    assert 60 <= options <= 80


def test_help_loads_neither_jax_nor_the_rooms():
    program = ("import sys\nsys.argv = ['resolvent', 'model', 'predict', '--help']\nfrom resolvent.cli import main\n"
               "try:\n    main()\nexcept SystemExit:\n    pass\n"
               "print(sorted({'jax', 'numpy', 'pandas', 'resolvent.comparisons'} & {*sys.modules}), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=True)
    assert done.stderr.strip() == "[]"


def test_list_names_everything_that_a_file_can_use(call, tmp_path):
    overview = call("list", cwd=tmp_path, columns=80)
    assert overview.code == 0
    kinds = {"experiments": experiments(), **listings()}
    *lines, last = overview.out.splitlines()
    assert last == "Next: resolvent list KIND"
    assert {line.split()[0]: int(line.split()[1]) for line in lines} == {kind: len(kinds[kind]) for kind in kinds}
    assert len(lines) < 25
    assert all(len(line) <= 80 for line in lines)
    for kind, names in kinds.items():
        listed = call("list", kind, cwd=tmp_path)
        assert listed.code == 0
        first, *rows = listed.out.strip().splitlines()
        assert first.strip() == kind
        for name in names:
            row = next(line for line in rows if line.split()[0] == name)
            assert len(row.split()) > 2, row
        assert len([line for line in rows if not line.startswith(" ")]) == len(names)
        if kind == "participation":
            assert "party k does effort[k] of the solver's work" in flat(listed.out)


def test_data_are_checked_and_the_exit_code_says_when_they_are_damaged(call, tmp_path, monkeypatch):
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    missing = call("data", "check", "shakespeare", cwd=tmp_path)
    assert missing.code == 0
    assert "missing" in missing.out
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-images-idx3-ubyte").write_bytes(b"cut off")
    damaged = call("data", "check", "mnist", cwd=tmp_path)
    assert damaged.code == 1
    assert "damaged" in damaged.out
    for wrong in (["fetch"], ["fetch", "minst"], ["check", "minst"]):
        refused = call("data", *wrong, cwd=tmp_path)
        assert refused.code == 2
        assert "mnist" in refused.err


def test_show_prints_yaml_that_can_be_run(call, tmp_path):
    outcome = call("show", "digits", "--set", "model.name=mlp", "model.width=8", cwd=tmp_path)
    assert outcome.code == 0
    assert YAML(typ="safe").load(outcome.out)["model"] == {"name": "mlp", "width": 8, "depth": 1, "l2": 0.0}
    (tmp_path / "mine.yaml").write_text(outcome.out)
    assert ExperimentFile.load(str(tmp_path / "mine.yaml")).bound.settings() == ExperimentFile.load(
        "digits", ["model.name=mlp", "model.width=8"]).bound.settings()
    assert call("show", "mine.yaml", cwd=tmp_path).out == outcome.out


def test_report_names_the_page_or_what_is_missing(finished, call, tmp_path):
    for name in ("summary.json", "metrics.parquet", "experiment.yaml"):
        (tmp_path / name).write_bytes((finished.folder / name).read_bytes())
    outcome = call("show", ".", "--redraw", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (0, "Report: report.html\n")
    assert (tmp_path / "report.html").read_bytes() == (finished.folder / "report.html").read_bytes()
    for name in ("experiment.yaml", "metrics.parquet", "summary.json"):
        content = (tmp_path / name).read_bytes()
        # A letter: the last digit of a long number can change without a change of the number.
        middle = next(i for i in range(len(content) // 2, len(content)) if chr(content[i]).isalpha())
        for damaged, wanted in ((None, f"{name} is missing"), (b"", f"{name}"), (content[:middle], f"{name}"),
                                (content[:middle] + b"7" + content[middle + 1:], f"{name}")):
            (tmp_path / name).unlink()
            if damaged is not None:
                (tmp_path / name).write_bytes(damaged)
            outcome = call("show", ".", "--redraw", cwd=tmp_path)
            assert (outcome.code, outcome.out) == (2, "")
            assert wanted in outcome.err
            assert outcome.err.count("\n") == 1
            (tmp_path / name).write_bytes(content)
    (tmp_path / "summary.json").write_text('{"name":\n "x"')
    assert "summary.json:2: not JSON" in call("show", ".", "--redraw", cwd=tmp_path).err


def test_a_command_that_has_left_the_package_names_its_new_place(call, tmp_path):
    outcome = call("reproduce", "splitting-anderson", "--quick", cwd=tmp_path)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == ("error: the papers' figures are not part of the package: run them in a clone of the "
                           "repository, with `python -m experiments NAME`\n")
