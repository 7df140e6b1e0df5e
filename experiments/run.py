"""Run a reproduction: search the open parameters, run every seed, check the claims."""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.claims import rules_of
from experiments.curves import Curve
from experiments.record import claim_record, panel_record
from experiments.reproduction import Reproduction
from experiments.run_metrics import Checkpoints
from experiments.schema import Setting
from experiments.search import ProgressOfPanel, is_searched, search
from experiments.settings import Choices
from resolvent.experiment_files import device, versions

Panels = dict[str, dict[str, Curve]]  # title -> label -> curve


def reproduce(reproduction: Reproduction, *, setting: Setting = "paper scale", changes: tuple[str, ...] = (),
              seeds: int | None = None, progress: ProgressOfPanel | None = None, panels: Sequence[str] = (),
              checkpoints: Path | None = None) -> dict[str, Any]:
    """Run a reproduction and check its claims.

    Args:
        setting: the paper's scale, the middle or the quick setting, or the tiny one for tests.
        changes: further changes of every panel, ``key.path=value``.
        seeds: number of seeds; default: that of the setting.
        panels: the panels that run, with the claims about them; default: all.
        checkpoints: a folder for the state of every run. Runs that are complete there are read, and an interrupted one
            is continued. The settings must be the same.

    Returns:
        The record for a results file.

    Raises:
        InputError: a setting is wrong, or a claim names an unknown rule, panel or method.
    """
    begin, cpu_begin = time.perf_counter(), time.process_time()
    count = seeds or reproduction.seeds_of(setting)
    report = progress or (lambda *_: None)
    reproduction = reproduction.restricted_to(setting)
    if panels:
        reproduction = reproduction.with_panels(panels)
    folder = Checkpoints(checkpoints)
    searched = {title: search(reproduction, title, setting, changes, report, folder)
                for title in reproduction.panels_with_runs if is_searched(reproduction, title)}
    choices = {title: {label: outcome["chosen"] for label, outcome in methods.items()}
               for title, methods in searched.items()}
    by_seed: list[Panels] = [{} for _ in range(count)]
    for title in reproduction.panels_with_runs:
        of_panel = choices.get(reproduction.panels[title].tuned or title)
        for seed, curves in enumerate(by_seed):
            report(title, seed, count)
            of_setting = (*reproduction.changes(setting, title), *changes)
            curves |= _run_panel(reproduction, title, seed, of_setting, of_panel, folder)
        report(title, count, count)
    return {
        "name": reproduction.name, "title": reproduction.title, "paper": reproduction.paper,
        "figure": reproduction.figure, "axis": reproduction.axis, "setting": setting, "log": reproduction.log,
        "columns": reproduction.columns, "notes": reproduction.notes,
        "command": _command(reproduction.name, setting, panels, seeds),
        "changes": [*reproduction.changes(setting), *changes],
        "seeds": count, "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(time.process_time() - cpu_begin + folder.restored_cpu_seconds, 1),
        "claims": [claim_record(claim, by_seed, setting, rules_of(reproduction.name)) for claim in reproduction.claims],
        "panels": {title: panel_record(reproduction, title, [curves[title] for curves in by_seed])
                   for title in reproduction.panels},
        "search": searched, "versions": versions(), "device": device(),
    }


def _command(name: str, setting: Setting, panels: Sequence[str], seeds: int | None) -> str:
    scale = {"quick": " --quick", "middle": " --scale middle"}.get(setting, "")
    chosen = f" --panels {shlex.join(panels)}" if panels else ""
    number = "" if seeds is None else f" --seeds {seeds}"
    return f"python -m experiments {name}{scale}{chosen}{number}"


def _run_panel(reproduction: Reproduction, title: str, seed: int, changes: tuple[str, ...],
               choices: Choices | None, checkpoints: Checkpoints) -> Panels:
    """The curves of a panel, and of all panels that show its runs by another measure."""
    views = {title: reproduction.view(title)}
    views |= {other: reproduction.view(other) for other, panel in reproduction.panels.items() if panel.of == title}
    runs = [checkpoints.run(experiment, title, seed, number)
            for number, experiment in enumerate(reproduction.experiments(title, seed, changes, choices))]
    return {other: {label: curve for run in runs for label, curve in run.curves(view).items()}
            for other, view in views.items()}
