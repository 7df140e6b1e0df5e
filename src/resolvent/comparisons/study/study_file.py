"""Experiment files with several data sets or a grid of settings: each combination is an experiment of its own."""

import copy
import itertools
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resolvent.comparisons.experiment.binding import label_of
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.yaml_files import read_text, read_yaml
from resolvent.comparisons.runs.compared_methods import ProgressOfMethod
from resolvent.comparisons.runs.comparison_runs import Notify, ignore
from resolvent.comparisons.runs.runner import run_experiment
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError, count_of, quote, shorten

if TYPE_CHECKING:  # a run that is no study needs none of them
    from resolvent.comparisons.study.figures import Kind
    from resolvent.comparisons.study.study import Study

STUDY_FILE = "study.json"  # name of each experiment of a study -> its folder


@dataclass(frozen=True)
class StudyFile:
    """An experiment file with several data sets or a grid.

    Attributes:
        name: the name of the study and of its folder.
        source: the file.
        changes: each ``key.path=value``, for all experiments.
        experiments: name of a combination -> its experiment.
    """

    name: str
    source: str
    changes: tuple[str, ...]
    experiments: dict[str, ExperimentFile]


def read_study(source: str, changes: Sequence[str] = ()) -> StudyFile | None:
    """The experiments of a file whose ``data`` is a list, or that has a ``sweep``; None for a single experiment.

    ``sweep`` is a mapping from paths of settings to lists of values: all combinations run, on every data set.

    Args:
        source: the path of a YAML file; an experiment that the package ships is a single one.
        changes: each ``key.path=value``, for all experiments.

    Raises:
        InputError: the file is wrong; the message has the line.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        return None
    settings = read_yaml(read_text(path), source)
    if not isinstance(settings, Mapping) or not (isinstance(settings.get("data"), list) or "sweep" in settings):
        return None
    experiments: dict[str, ExperimentFile] = {}
    for data in settings["data"] if isinstance(settings.get("data"), list) else [None]:
        for values in _grid(settings.get("sweep", {}), source):
            of_combination: Any = copy.deepcopy(settings)
            of_combination.pop("sweep", None)
            if data is not None:
                of_combination["data"] = copy.deepcopy(data)
            name = ", ".join([*([] if data is None else [_data_name(data)]),
                              *(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())])
            name = name if name not in experiments else f"{name} ({sum(n.startswith(name) for n in experiments) + 1})"
            experiments[name] = ExperimentFile.of_settings(
                of_combination, source, path.stem, [*(f"{key}={json.dumps(v)}" for key, v in values.items()), *changes])
    if not experiments:
        raise InputError(f"{source}: data: the list is empty: name at least one data set")
    if len({folder_name(name).casefold() for name in experiments}) < len(experiments):
        raise InputError(f"{source}: sweep: two combinations would be written to one folder: "
                         f"{shorten(', '.join(experiments))}; use values with shorter names")
    return StudyFile(path.stem, source, tuple(changes), experiments)


def _grid(sweep: Any, source: str) -> list[dict[str, Any]]:
    if not isinstance(sweep, Mapping) or not all(isinstance(v, list) and len(v) for v in sweep.values()):
        raise InputError(f"{source}: sweep: expected a mapping from settings to lists of values, such as "
                         f"sweep: {{algorithms.FedProx.mu: [0.1, 1]}}, got {quote(sweep)}")
    return [dict(zip(map(str, sweep), point, strict=True)) for point in itertools.product(*sweep.values())]


def _data_name(data: Any) -> str:
    """The name of a data set: that of the part, or of the table's file."""
    name = label_of(data)
    if name is None and isinstance(data, Mapping) and isinstance(data.get("table"), str):
        name = Path(data["table"]).stem
    return name or "data"


def run_study(study: StudyFile, out: Path | None = None, *, resume: bool = False, overwrite: bool = False,
              jobs: int = 1, progress: ProgressOfMethod | None = None, notify: Notify = ignore) -> "tuple[Path, Study]":
    """Run all experiments of a study, each into a folder of its own, and write the page and the files for a paper.

    Args:
        study: the study.
        out: the folder; default: ``runs/NAME``.
        resume: run what is missing: complete experiments are read, interrupted ones continue.
        overwrite: replace what is in the folders.
        jobs: number of experiments that run at the same time, each in a process of its own.
        progress: a function that is called with (label, rounds done, rounds in total).
        notify: a function that is called with messages.

    Returns:
        The folder and the study.

    Raises:
        InputError: a folder is in use, or an experiment is refused. The others run first, and remain.
    """
    if jobs < 1:
        raise InputError(f"jobs: {jobs} must be at least 1")
    root = Path("runs") / study.name if out is None else out
    folders = {name: root / folder_name(name) for name in study.experiments}
    refused: dict[str, InputError] = {}
    if jobs == 1:
        for name, file in study.experiments.items():
            try:
                run_experiment(file, folders[name], resume=resume, overwrite=overwrite, notify=notify,
                               progress=None if progress is None else _named(progress, name))
            except InputError as error:
                refused[name] = error
    else:
        context = multiprocessing.get_context("spawn")  # JAX has threads, which a fork does not copy
        with ProcessPoolExecutor(min(jobs, len(folders)), mp_context=context) as pool:
            started = {pool.submit(_run_one, study, name, folders[name], resume, overwrite): name for name in folders}
            for done, future in enumerate(as_completed(started), start=1):
                failure = future.exception()
                if isinstance(failure, InputError):
                    refused[started[future]] = failure
                elif failure is not None:
                    raise failure
                if progress is not None:
                    progress("experiments", done, len(folders))
    if refused:
        name, first = next(iter(refused.items()))
        raise InputError(f"{count_of(len(refused), 'experiment')} of {len(folders)} did not run; {name}: {first}")
    write_text(root / STUDY_FILE, json.dumps({name: folder.name for name, folder in folders.items()}, indent=1))
    result = study_of_folders([root])
    result.paper(root / "paper")
    write_study_page(root / "report.html", study.name, result, {name: f.name for name, f in folders.items()})
    return root, result


def _named(progress: ProgressOfMethod, name: str) -> ProgressOfMethod:
    return lambda label, done, total: progress(f"{name}: {label}", done, total)


def _run_one(study: StudyFile, name: str, folder: Path, resume: bool, overwrite: bool) -> None:
    """Run one experiment in this process, which reads the file again."""
    again = read_study(study.source, study.changes)
    assert again is not None
    run_experiment(again.experiments[name], folder, resume=resume, overwrite=overwrite)


def study_of_folders(folders: Sequence[Path | str]) -> "Study":
    """The study of run folders, or of the folder that ``run_study`` wrote.

    Args:
        folders: each a folder, or NAME=FOLDER, or NAME=FOLDER,FOLDER for runs on the same test rows.

    Raises:
        InputError: a folder has no finished run, or two have the same name.
    """
    from resolvent.comparisons.study.study import Study

    runs: dict[str, Path | Sequence[Path]] = {}
    for text in map(str, folders):
        name, equals, paths = text.partition("=")
        if equals and not Path(text).is_dir():
            named: dict[str, Path | Sequence[Path]] = {name: [Path(path) for path in paths.split(",")]}
        elif (file := Path(text) / STUDY_FILE).is_file():
            named = {label: Path(text) / folder for label, folder in json.loads(file.read_text("utf-8")).items()}
        else:
            named = {Path(text).name: Path(text)}
        if repeated := runs.keys() & named.keys():
            raise InputError(f"two run folders have the name {quote(min(repeated))}: write NAME=FOLDER for one of them")
        runs |= named
    return Study(runs)


_FIGURES: dict["Kind", str] = {"curves": "Learning curves", "differences": "Differences from the reference",
                             "parties": "Scores of the sites", "traffic": "Scores against bytes"}


def write_study_page(path: Path, title: str, study: "Study", reports: Mapping[str, str]) -> None:
    """Write the page, one self-contained file.

    Args:
        reports: name of a data set -> the folder with its report, next to the page.
    """
    from markupsafe import Markup

    from resolvent.comparisons.pages import page_colours, svg_of, write_page
    from resolvent.comparisons.study.tables import CAPTIONS, number_texts
    from resolvent.comparisons.text_tables import text_table

    scores = {name: part.evidence.score for name, part in study.parts.items()}
    tables = {"differences": study.differences(), "costs": study.costs(), "fairness": study.fairness()}
    captions = CAPTIONS | {"differences": CAPTIONS["pairs"]}
    with page_colours():
        figures = {heading: svg_of(study.plot(kind), heading) for kind, heading in _FIGURES.items()}
        if study.has_ranks:
            figures["Ranks over the data sets"] = svg_of(study.plot("ranks"), "Ranks over the data sets")
    write_page(
        path, "study", title=title, paragraph=study.paragraph(), reports=reports, figures=figures,
        scores=Markup(str(study.table("html"))),
        tables={name: Markup(text_table(*number_texts(frame, scores), "html", captions[name]))
                for name, frame in tables.items()})
