"""A reproduction: a paper's figure as experiments, read from one file."""

import copy
import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pydantic
from ruamel.yaml import YAML

from experiments.schema import Claim, Panel, Search, Setting, SmallSetting, View
from experiments.settings import Choices, fill, merge, texts_in
from resolvent.errors import InputError, alternatives, quote
from resolvent.experiment_files import ExperimentFile, with_choices

FIGURES = Path(__file__).parent / "figures"


class PanelExperiment(NamedTuple):
    """An experiment of a panel, and the point of the sweep that each of its labels stands for."""

    file: ExperimentFile
    points: dict[str, dict[str, Any]]


class Reproduction(pydantic.BaseModel):
    """A figure of a paper.

    Attributes:
        name: its name on the command line.
        measure: see ``View``, also for the next six.
        over: how the parties become one number.
        log: whether the vertical axis is logarithmic.
        columns: panels in a row of the picture; 0: all in one row.
        notes: notes for the reader: what the paper leaves open, and what was chosen.
        seeds: number of seeds at the paper's scale.
        experiment: the settings that all panels share.
        search: the choice of parameters before the seeds run.
        middle: a setting between the paper's scale and the quick one, which decides all claims in hours on two cores.
        tiny: the smallest setting that runs, for tests; its changes are added to those of the quick setting.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str
    paper: str
    figure: str
    measure: str = "gap"
    split: str = "train"
    over: str = "mean"
    axis: str = "optimality gap f(w) - f*"
    log: bool = True
    baselines: list[str] = []
    columns: int = 0
    notes: list[str] = []
    seeds: int
    experiment: dict[str, Any]
    panels: dict[str, Panel]
    search: Search | None = None
    claims: list[Claim]
    middle: SmallSetting | None = None
    quick: SmallSetting
    tiny: SmallSetting = SmallSetting()

    @classmethod
    def load(cls, name: str) -> "Reproduction":
        """Read a reproduction by name."""
        return _load(name)

    @classmethod
    def parse(cls, name: str, text: str) -> "Reproduction":
        """Check the text of a reproduction."""
        try:
            reproduction = cls(name=name, **YAML(typ="safe").load(text))
        except pydantic.ValidationError as error:
            raise InputError(f"{name}.yaml: {error}") from error
        texts = [claim.says for claim in reproduction.claims]
        if repeated := sorted({text for text in texts if texts.count(text) > 1}):
            raise InputError(f"{name}.yaml: claims: {quote(repeated[0])} occurs twice: give each claim its own text")
        with_runs = reproduction.panels_with_runs
        for title, panel in reproduction.panels.items():
            for key, other in (("of", panel.of), ("tuned", panel.tuned)):
                if other and other not in with_runs:
                    raise InputError(f"{name}.yaml: panels.{title}.{key}: there is no panel {other!r} with runs of its "
                                     f"own; there are {', '.join(with_runs)}")
        return reproduction

    @property
    def panels_with_runs(self) -> list[str]:
        """The titles of the panels that do not show another panel's runs."""
        return [title for title, panel in self.panels.items() if not panel.of]

    def seeds_of(self, setting: Setting) -> int:
        """The number of seeds in a setting."""
        return self.levels(setting)[-1].seeds if setting != "paper scale" else self.seeds

    def view(self, title: str) -> View:
        """What a panel reads from its runs."""
        panel = self.panels[title]
        return View(**{key: getattr(self, key) if getattr(panel, key) is None else getattr(panel, key)
                       for key in View.model_fields})

    def levels(self, setting: Setting) -> tuple[SmallSetting, ...]:
        """The smaller settings whose changes a setting has, in the order in which they apply."""
        if setting == "middle" and self.middle is None:
            raise InputError(f"{self.name} has no middle setting: use --quick, or run it at the paper's scale")
        middle = () if self.middle is None else (self.middle,)
        return {"paper scale": (), "middle": middle, "quick": (self.quick,), "tiny": (self.quick, self.tiny)}[setting]

    def changes(self, setting: Setting, title: str = "") -> tuple[str, ...]:
        """The changes of a setting: of every panel and, with a title, of this panel too."""
        return tuple(c for level in self.levels(setting) for c in (*level.set, *level.panels.get(title, ())))

    def restricted_to(self, setting: Setting) -> "Reproduction":
        """The reproduction with the panels and methods of a setting, and with the claims that mention no others."""
        left_out = {title for level in self.levels(setting) for title in level.without}
        titles = [title for title, panel in self.panels.items() if not {title, panel.of} & left_out]
        return self.with_panels(titles)._with_methods(setting)

    def with_panels(self, titles: Sequence[str]) -> "Reproduction":
        """The reproduction with these panels, those that show their runs, and the claims about no other panel."""
        for title in titles:
            if title not in self.panels:
                raise InputError(f"{self.name} has no panel {quote(title)}{alternatives(title, self.panels)}")
        panels = {title: panel for title, panel in self.panels.items() if title in titles or panel.of in titles}
        for title, panel in panels.items():
            if other := {panel.tuned, panel.of} - {"", *panels}:
                raise InputError(f"{self.name}: the panel {title} needs the panel {' and '.join(other)}: add it")
        removed = self.panels.keys() - panels
        claims = [claim for claim in self.claims if not removed & _texts_of(claim)]
        return self.model_copy(update={"panels": panels, "claims": claims})

    def _with_methods(self, setting: Setting) -> "Reproduction":
        allowed = [set(level.methods) for level in self.levels(setting) if level.methods]
        if not allowed:
            return self
        experiments: list[dict[str, Any]] = [self.experiment, *(panel.experiment for panel in self.panels.values())]
        labels: set[str] = {label for experiment in experiments for label in experiment.get("algorithms", {})}
        removed = {label for label in labels if not all(label in methods for methods in allowed)}

        def restrict(experiment: dict[str, Any]) -> dict[str, Any]:
            if "algorithms" not in experiment:
                return experiment
            return {**experiment, "algorithms": {label: algorithm for label, algorithm in
                                                 experiment["algorithms"].items() if label not in removed}}

        panels = {title: panel.model_copy(update={"experiment": restrict(panel.experiment)})
                  for title, panel in self.panels.items()}
        claims = [claim for claim in self.claims if not removed & _texts_of(claim)]
        return self.model_copy(update={"experiment": restrict(self.experiment), "panels": panels, "claims": claims})

    def settings_of(self, title: str) -> dict[str, Any]:
        """The settings of a panel's experiment, before any sweep."""
        return merge(self.experiment, self.panels[title].experiment)

    def experiments(self, title: str, seed: int, changes: Sequence[str] = (),
                    choices: Choices | None = None) -> list[PanelExperiment]:
        """A panel's experiments. The seed is that of the run; and of the problem or the data, if the file has no other.

        Args:
            changes: each ``key.path=value``.
            choices: the parameters that a search chose.

        Raises:
            InputError: the settings are wrong.
        """
        sweep, settings, choices = self.panels[title].sweep, self.settings_of(title), choices or {}
        if sweep is None:
            points: dict[str, dict[str, Any]] = {label: {} for label in settings["algorithms"]}
            return [PanelExperiment(self._file(title, with_choices(settings, choices), seed, changes), points)]
        swept = [self._swept(title, settings, point, choices) for point in sweep.points()]
        if not sweep.experiment:  # the experiment is the same at every point, so that all algorithms share one
            baselines = with_choices(settings, choices)["algorithms"] if sweep.baselines else {}
            algorithms = dict(itertools.chain.from_iterable(s["algorithms"].items() for s, _ in swept))
            points = dict(itertools.chain.from_iterable(p.items() for _, p in swept))
            swept = [({**swept[0][0], "algorithms": algorithms | {b: baselines[b] for b in sweep.baselines}},
                      points | {baseline: {} for baseline in sweep.baselines})]
        return [PanelExperiment(self._file(title, s, seed, changes), points) for s, points in swept]

    def _swept(self, title: str, settings: Mapping[str, Any], point: dict[str, Any],
               choices: Choices) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The settings at a point of the panel's sweep, and the point of each label."""
        sweep = self.panels[title].sweep
        assert sweep is not None
        at_point = fill(merge(settings, sweep.experiment), point)
        algorithms = ({"": fill(sweep.algorithm, point)} if sweep.algorithm
                      else with_choices(at_point, choices)["algorithms"])
        labels = {method: sweep.label.format(**{"method": method} | point) for method in algorithms}
        at_point["algorithms"] = {labels[method]: algorithm for method, algorithm in algorithms.items()}
        return at_point, {label: point | ({"method": method} if method else {}) for method, label in labels.items()}

    def _file(self, title: str, settings: Mapping[str, Any], seed: int, changes: Sequence[str]) -> ExperimentFile:
        combinator = self.panels[title].combinator
        algorithms = {label: {**combinator, "inner": algorithm} if combinator else algorithm
                      for label, algorithm in settings["algorithms"].items()}
        stated = {**settings, "algorithms": algorithms}

        def read(*changes: str) -> ExperimentFile:  # which are made in place
            return ExperimentFile.of_settings(copy.deepcopy(stated), f"{self.name}, {title}", self.name, changes)

        file = read(*changes, f"seed={seed}")
        seeded = [f"{key}.seed={seed}" for key in ("problem", "data")
                  if "seed" in (file.settings.get(key) or {}) and "seed" not in _mapping(settings.get(key))]
        return read(*changes, f"seed={seed}", *seeded) if seeded else file


@cache
def _load(name: str) -> Reproduction:
    texts = reproductions()
    if name not in texts:
        raise InputError(f"there is no reproduction {quote(name)}{alternatives(name, texts)}")
    return Reproduction.parse(name, texts[name])


def _texts_of(claim: Claim) -> set[str]:
    return texts_in([claim.args, claim.read.model_dump(), claim.model_dump(include={"readings"})])


def reproductions() -> dict[str, str]:
    """The reproductions: text by name."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(FIGURES.glob("*.yaml"))}


def _mapping(settings: object) -> Mapping[str, Any]:
    return settings if isinstance(settings, Mapping) else {}
