"""Run a reproduction: search the open parameters, run every seed, check the claims."""

import time
from typing import Any

from resolvent.study.environment import device, versions
from resolvent.study.reproductions.claims import check
from resolvent.study.reproductions.curves import Curve
from resolvent.study.reproductions.readings import Readings
from resolvent.study.reproductions.record import claim_record, panel_record
from resolvent.study.reproductions.reproduction import Reproduction
from resolvent.study.reproductions.schema import Setting
from resolvent.study.reproductions.search import ProgressOfPanel, is_searched, search
from resolvent.study.reproductions.settings import Choices

__all__ = ["reproduce"]

Panels = dict[str, dict[str, Curve]]  # title -> label -> curve


def reproduce(reproduction: Reproduction, *, setting: Setting = "paper scale", changes: tuple[str, ...] = (),
              seeds: int | None = None, progress: ProgressOfPanel | None = None) -> dict[str, Any]:
    """Run a reproduction and check its claims.

    Args:
        reproduction: the reproduction.
        setting: the paper's scale, the quick setting, or the tiny one for tests.
        changes: further changes of every panel, ``key.path=value``.
        seeds: number of seeds; default: that of the setting.
        progress: called with (panel, runs done, runs in total).

    Returns:
        The record for a results file.

    Raises:
        InputError: a setting is wrong, or a claim names an unknown rule, panel or method.
    """
    begin, cpu_begin = time.perf_counter(), time.process_time()
    count = seeds or reproduction.seeds_of(setting)
    report = progress or (lambda *_: None)
    reproduction = reproduction.restricted_to(setting)
    searched = {title: search(reproduction, title, setting, changes, report)
                for title in reproduction.panels_with_runs if is_searched(reproduction, title)}
    choices = {title: {label: outcome["chosen"] for label, outcome in methods.items()}
               for title, methods in searched.items()}
    by_seed: list[Panels] = [{} for _ in range(count)]
    for title in reproduction.panels_with_runs:
        of_panel = choices.get(reproduction.panels[title].tuned or title)
        for seed, panels in enumerate(by_seed):
            report(title, seed, count)
            panels |= _run_panel(reproduction, title, seed, (*reproduction.changes(setting, title), *changes), of_panel)
        report(title, count, count)
    items = [[check(claim.rule, panels, **claim.args) for panels in by_seed] for claim in reproduction.claims]
    return {
        "name": reproduction.name, "title": reproduction.title, "paper": reproduction.paper,
        "figure": reproduction.figure, "axis": reproduction.axis, "setting": setting, "log": reproduction.log,
        "columns": reproduction.columns, "notes": reproduction.notes,
        "command": f"resolvent reproduce {reproduction.name}{' --quick' if setting == 'quick' else ''}",
        "changes": [*reproduction.changes(setting), *changes],
        "seeds": count, "seconds": round(time.perf_counter() - begin, 1),
        "cpu_seconds": round(time.process_time() - cpu_begin, 1),
        "claims": [claim_record(claim, of_claim, setting)
                   for claim, of_claim in zip(reproduction.claims, items, strict=True)],
        "panels": {title: panel_record(reproduction, title, [panels[title] for panels in by_seed])
                   for title in reproduction.panels},
        "search": searched, "versions": versions(), "device": device(),
    }


def _run_panel(reproduction: Reproduction, title: str, seed: int, changes: tuple[str, ...],
               choices: Choices | None) -> Panels:
    """The curves of a panel, and of all panels that show its runs by another measure."""
    views = {title: reproduction.view(title)}
    views |= {other: reproduction.view(other) for other, panel in reproduction.panels.items() if panel.of == title}
    runs = [Readings(experiment) for experiment in reproduction.experiments(title, seed, changes, choices)]
    return {other: {label: curve for run in runs for label, curve in run.curves(view).items()}
            for other, view in views.items()}
