"""Reproductions: a paper's figure as experiments, with its claims as rules, from one file in the package."""

import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import pydantic
from ruamel.yaml import YAML

from resolvent.errors import InputError, nearest
from resolvent.study.components import parameters
from resolvent.study.experiment import ExperimentFile
from resolvent.study.settings import Choice, filled, merged, texts, tuned

__all__ = ["Claim", "Panel", "Reproduction", "Search", "Setting", "View", "better", "reproductions", "worst"]

Setting = Literal["paper scale", "quick", "tiny"]
Direction = Literal["highest", "lowest"]


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Claim(_Strict):
    """What a paper says of a figure.

    Attributes:
        says: in words.
        paper: the paper's number, where it has one.
        rule: the name of the rule in ``claims``.
        args: its arguments.
    """

    says: str
    paper: str = ""
    rule: str
    args: dict[str, Any]


class Small(_Strict):
    """A smaller setting.

    Attributes:
        seeds: how many seeds.
        set: changes of every panel, ``key.path=value``.
        panels: further changes of single panels.
        search_rounds: rounds of a search, if it has rounds of its own.
        methods: the labels that are left; none named: all.
    """

    seeds: int = 1
    set: list[str] = []
    panels: dict[str, list[str]] = {}
    search_rounds: int | None = None
    methods: list[str] = []


class Sweep(_Strict):
    """One algorithm, or one experiment, for every combination of parameters.

    Attributes:
        over: the values of each parameter; ``$name`` in the algorithm and the experiment stands for them.
        algorithm: an algorithm in place of the experiment's.
        experiment: what differs from the panel's experiment at each point.
        label: the label of a curve, such as ``k = {k}, eta = {eta:g}``; ``{method}`` is the algorithm's own label.
        along: parameters that go with the first one's values, such as a step for each alpha: as many values.
        beside: labels of the experiment's algorithms that have no parameters: they are level lines in the picture.
    """

    over: dict[str, list[Any]]
    along: dict[str, list[Any]] = {}
    beside: list[str] = []
    algorithm: dict[str, Any] | None = None
    experiment: dict[str, Any] = {}
    label: str

    @pydantic.model_validator(mode="after")
    def _fits(self) -> "Sweep":
        first, count = next((name, len(values)) for name, values in self.over.items())
        for name, values in self.along.items():
            if len(values) != count:
                raise ValueError(f"along.{name} has {len(values)} values: give one for each of the {count} of {first}")
        if self.beside and (self.algorithm is None or self.experiment):
            raise ValueError("beside goes with a sweep of one algorithm: give algorithm, and no experiment")
        return self

    def points(self) -> Iterator[dict[str, Any]]:
        """Every combination."""
        first, *others = self.over.values()
        for (value, *more), *rest in itertools.product(zip(first, *self.along.values(), strict=True), *others):
            yield dict(zip(self.over, (value, *rest), strict=True)) | dict(zip(self.along, more, strict=True))


class Draw(_Strict):
    """How a panel is drawn.

    Attributes:
        x: the abscissa: ``rounds``; ``seconds``, ``bytes`` or ``bytes_up`` of a virtual clock; ``lambda`` of the
            measure ``line``; a parameter of the sweep, for last values; or ``methods``, a bar of each one's last value.
        lines: the parameter of the sweep that has a line each, or ``method``.
        log_x: whether a sweep's abscissa is logarithmic.
    """

    x: str = "rounds"
    lines: str = ""
    log_x: bool = True


class View(_Strict):
    """What is read off a run.

    Attributes:
        measure: a metric of the shared or the deployed models; or ``line``, the loss on the way from the one to the
            other at the end, which the diagnostic ``line`` measures.
        split: the samples that it is of; ``train`` for metrics that are of none.
        over: how the parties become one number: ``mean``; ``samples``, the mean weighted by their samples of the split;
            ``worst``, ``p10`` (nine parties in ten do better), ``std``; or ``party 3``.
        axis: what the ordinate is called.
        log: whether it is logarithmic.
    """

    measure: str
    split: str
    over: str
    axis: str
    log: bool

    @property
    def better(self) -> Direction:
        """Whether more of it is better."""
        return better(self.measure)


class Panel(_Strict):
    """One picture, and the experiment behind it.

    Attributes:
        experiment: what differs from the reproduction's experiment.
        of: another panel, whose runs are seen here by another measure; nothing runs twice.
        tuned: another panel, whose search chose this one's parameters.
        sweep: algorithms in place of the experiment's, or a series of experiments.
        around: a combinator that goes around every algorithm.
        draw: how it is drawn.
        measure: in place of the reproduction's; so are ``split``, ``over``, ``axis`` and ``log``.
    """

    experiment: dict[str, Any] = {}
    of: str = ""
    tuned: str = ""
    sweep: Sweep | None = None
    around: dict[str, Any] | None = None
    draw: list[Draw] = [Draw()]
    measure: str | None = None
    split: str | None = None
    over: str | None = None
    axis: str | None = None
    log: bool | None = None


class Select(_Strict):
    """By what a search chooses: the last value of a measure, as a ``View`` has it.

    Attributes:
        measure: a metric.
        split: the samples that it is of.
        over: how the parties become one number.
    """

    measure: str
    split: str = "validation"
    over: str = "mean"


class Search(_Strict):
    """Parameters that the paper leaves open, chosen for every method by trying the same number of them.

    Attributes:
        select: by what.
        grid: for each label, or ``*`` for every one, the values of each parameter; its path is that below the
            algorithm, such as ``mu`` or ``solver.learning_rate``.
        rounds: how many rounds a trial has; default: the experiment's.
        seeds: how many seeds a trial has; they count down from 1000, so that none is among those reported.
        panels: which panels; default: all that have runs of their own.
    """

    select: Select
    grid: dict[str, dict[str, list[Any]]]
    rounds: int | None = None
    seeds: int = 1
    panels: list[str] | None = None

    def points(self, label: str) -> list[dict[str, Any]]:
        """What is tried for a method; empty where there is nothing to choose."""
        over = {**self.grid.get("*", {}), **self.grid.get(label, {})}
        return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())] if over else []


class Reproduction(_Strict):
    """A figure of a paper.

    Attributes:
        name: what the command calls it.
        title: what it is about.
        paper: whose figure.
        figure: which figure.
        measure: see ``View``; so for the next four.
        split: the samples.
        over: how parties become one number.
        axis: the ordinate.
        log: whether it is logarithmic.
        columns: panels in a row of the picture; 0: all in one.
        notes: what a reader should know: what the paper leaves open and what was taken.
        seeds: how many seeds at paper scale.
        experiment: the settings that all panels share.
        panels: by title.
        search: what is chosen before the seeds run.
        claims: what is claimed.
        quick: the small setting.
        tiny: the least setting in which it runs at all, on top of the small one; for tests.
    """

    name: str
    title: str
    paper: str
    figure: str
    measure: str = "gap"
    split: str = "train"
    over: str = "mean"
    axis: str = "optimality gap f(w) - f*"
    log: bool = True
    columns: int = 0
    notes: list[str] = []
    seeds: int
    experiment: dict[str, Any]
    panels: dict[str, Panel]
    search: Search | None = None
    claims: list[Claim]
    quick: Small
    tiny: Small = Small()

    @classmethod
    def load(cls, name: str) -> "Reproduction":
        """Read a shipped reproduction by name.

        Raises:
            InputError: there is none of this name, or its file is wrong.
        """
        shipped = reproductions()
        if name not in shipped:
            raise InputError(f"there is no reproduction {name!r}; there are {', '.join(shipped)}"
                             f"{nearest(name, shipped)}")
        return cls.parse(name, shipped[name])

    @classmethod
    def parse(cls, name: str, text: str) -> "Reproduction":
        """Check a reproduction's text.

        Raises:
            InputError: it is wrong.
        """
        try:
            what = cls(name=name, **YAML(typ="safe").load(text))
        except pydantic.ValidationError as error:
            raise InputError(f"{name}.yaml: {error}") from error
        for title, panel in what.panels.items():
            for key, other in (("of", panel.of), ("tuned", panel.tuned)):
                if other and (other not in what.panels or what.panels[other].of):
                    own = [t for t, p in what.panels.items() if not p.of]
                    raise InputError(f"{name}.yaml: panels.{title}.{key}: there is no panel {other!r} with runs of its "
                                     f"own; there are {', '.join(own)}")
        return what

    def view(self, panel: str) -> View:
        """What is read off a panel's runs."""
        one = self.panels[panel]
        return View(**{key: getattr(self, key) if getattr(one, key) is None else getattr(one, key)
                       for key in View.model_fields})

    def levels(self, setting: Setting) -> tuple[Small, ...]:
        """The smaller settings that one setting is made of, one on top of the other."""
        return {"paper scale": (), "quick": (self.quick,), "tiny": (self.quick, self.tiny)}[setting]

    def changes(self, setting: Setting, panel: str) -> tuple[str, ...]:
        """What a smaller setting changes."""
        return tuple(c for level in self.levels(setting) for c in (*level.set, *level.panels.get(panel, ())))

    def left(self, setting: Setting) -> "Reproduction":
        """The same with the methods that a smaller setting leaves, and the claims that speak of no other."""
        kept = [set(level.methods) for level in self.levels(setting) if level.methods]
        if not kept:
            return self
        experiments: list[dict[str, Any]] = [self.experiment, *(panel.experiment for panel in self.panels.values())]
        labels: set[str] = {label for e in experiments for label in e.get("algorithms", {})}
        gone = {label for label in labels if not all(label in some for some in kept)}

        def of(experiment: dict[str, Any]) -> dict[str, Any]:
            if "algorithms" not in experiment:
                return experiment
            return {**experiment, "algorithms": {k: v for k, v in experiment["algorithms"].items() if k not in gone}}

        panels = {title: panel.model_copy(update={"experiment": of(panel.experiment)})
                  for title, panel in self.panels.items()}
        claims = [claim for claim in self.claims if not gone & texts(claim.args)]
        return self.model_copy(update={"experiment": of(self.experiment), "panels": panels, "claims": claims})

    def files(self, panel: str, seed: int, changes: Sequence[str] = (), choice: Choice | None = None,
              ) -> list[tuple[ExperimentFile, dict[str, dict[str, Any]]]]:
        """A panel's experiments, each with the point of the sweep that every algorithm stands for; the seed is of the
        instance as well as of the run.

        Raises:
            InputError: the settings are wrong.
        """
        one = self.panels[panel]
        settings = merged(self.experiment, one.experiment)
        if one.sweep is None:
            return [(self._file(panel, tuned(settings, choice or {}), seed, changes),
                     {label: {} for label in settings["algorithms"]})]
        sweep, found = one.sweep, []
        for point in sweep.points():
            here = filled(merged(settings, sweep.experiment), point)
            own = {"": filled(sweep.algorithm, point)} if sweep.algorithm else tuned(here, choice or {})["algorithms"]
            labels = {method: sweep.label.format(method=method, **point) for method in own}
            here["algorithms"] = {labels[method]: algorithm for method, algorithm in own.items()}
            found.append((here, {label: {**point, **({"method": method} if method else {})}
                                 for method, label in labels.items()}))
        if not sweep.experiment:  # one world for all: they are one experiment
            plain = tuned(settings, choice or {})["algorithms"] if sweep.beside else {}
            together = {**found[0][0], "algorithms": {k: v for here, _ in found for k, v in here["algorithms"].items()}
                        | {label: plain[label] for label in sweep.beside}}
            found = [(together, {k: v for _, points in found for k, v in points.items()}
                      | {label: {} for label in sweep.beside})]
        return [(self._file(panel, here, seed, changes), points) for here, points in found]

    def _file(self, panel: str, settings: Mapping[str, Any], seed: int, changes: Sequence[str]) -> ExperimentFile:
        around = self.panels[panel].around
        inside = settings["algorithms"].items()
        algorithms = {k: {**around, "inner": v} if around else v for k, v in inside}
        text = io.StringIO()
        YAML().dump({**settings, "algorithms": algorithms}, text)
        source = f"{self.name}, {panel}"
        plain = ExperimentFile.parse(text.getvalue(), source, self.name, (*changes, f"seed={seed}"))
        seeded = [f"{key}.seed={seed}" for key in ("problem", "data")
                  if key in plain.bound.parts and "seed" in parameters(plain.bound.parts[key].function)]  # type: ignore[union-attr]
        return ExperimentFile.parse(text.getvalue(), source, self.name, (*changes, f"seed={seed}", *seeded))


def reproductions() -> dict[str, str]:
    """The shipped reproductions: text by name."""
    folder = resources.files("resolvent.study") / "reproductions"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {f.name.removesuffix(".yaml"): f.read_text(encoding="utf-8") for f in files}


def better(measure: str) -> Direction:
    """Whether more of a metric is better: of accuracies it is, of losses, gaps and errors it is not."""
    return "highest" if measure.endswith("accuracy") else "lowest"


def worst(measure: str) -> float:
    """What a run that diverged counts as."""
    return -math.inf if better(measure) == "highest" else math.inf
