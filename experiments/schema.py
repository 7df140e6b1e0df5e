"""What the file of a reproduction may say: panels, sweeps, views, searches, claims, their readings, and settings."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import pydantic

from resolvent.metrics import higher_is_better

Setting = Literal["paper scale", "middle", "quick", "tiny"]  # from the largest to the smallest
SETTING_OF_SCALE: dict[str, Setting] = {"paper": "paper scale", "middle": "middle", "quick": "quick"}


class _Strict(pydantic.BaseModel):
    """A frozen mapping without unknown keys."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Stop(_Strict):
    """The round in which a run stops: it diverges, has converged, or ends. Source: FedProx, C.3.2.

    Attributes:
        losses: for each panel, the panel with the loss of its runs.
        within: number of rounds; a run diverges if its loss has grown by more than ``by`` within them.
        by: see ``within``.
        change: a run has converged if its loss changes by less than this between evaluations.
    """

    losses: dict[str, str]
    within: int = 10
    by: float = 1.0
    change: float = 0.0


class Read(_Strict):
    """How a curve becomes one number, which the rules call its last value.

    The curve ends at ``round`` and where it is ``stopped``. Of the others at most one may be set.

    Attributes:
        round: the last round that is read.
        stopped: where each run stops.
        late: the mean of the values after this share of the rounds.
        fluctuation: the standard deviation of the changes between evaluations after this share of the rounds.
        settled: the first round with a value of at most this multiple of the last one, or of at most ``negligible``.
        reached: the first round, or point of the axis ``by``, with a value of at most this share of the first one.
        by: ``rounds``, or an axis of a virtual clock.
        negligible: the share of the first value at which a curve has settled.
    """

    round: int | None = None
    stopped: Stop | None = None
    late: float | None = None
    fluctuation: float | None = None
    settled: float | None = None
    reached: float | None = None
    by: str = "rounds"
    negligible: float = 1e-8

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Read":
        if sum(v is not None for v in (self.late, self.fluctuation, self.settled, self.reached)) > 1:
            raise ValueError("set at most one of late, fluctuation, settled and reached: a curve becomes one number")
        return self


class Reading(NamedTuple):
    """One reading of a claim: what is checked if each open choice is made in one way.

    Attributes:
        choices: for each choice that the paper leaves open, the option; empty if there is no choice.
        rule: the rule.
        read: how curves become numbers.
        args: the rule's arguments.
    """

    choices: dict[str, str]
    rule: str
    read: Read
    args: dict[str, Any]


class Option(_Strict):
    """What an option of an open choice changes in a claim.

    Attributes:
        rule: another rule.
        read: another way to read curves.
        args: further arguments; ``null`` removes one.
    """

    rule: str = ""
    read: Read | None = None
    args: dict[str, Any] = {}


class Claim(_Strict):
    """One statement about a figure.

    Attributes:
        says: the statement.
        paper: the paper's number, if it states one.
        ours: whether the statement is ours; otherwise it is the paper's.
        headline: the number's name in the table of the papers' most important numbers; empty: it is not in the table.
        changed: the verdict of an earlier version and why this one differs, for the reader.
        converged: whether only runs that have converged decide it; the quick setting then does not. ``paper scale``:
            the middle setting does not either.
        rule: the name of a rule of the figure's own module, or of a common one.
        read: how a curve becomes one number.
        args: the rule's arguments.
        readings: for each choice that the paper leaves open, its options by name. Every combination is checked.
    """

    says: str
    paper: str = ""
    ours: bool = False
    headline: str = ""
    changed: str = ""
    converged: bool | Literal["paper scale"] = False
    rule: str
    read: Read = Read()
    args: dict[str, Any]
    readings: dict[str, dict[str, Option]] = {}

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Claim":
        if self.ours and self.paper:
            raise ValueError(f"paper: {self.paper!r}: a claim that is ours has no number of the paper: leave it out")
        for choice, options in self.readings.items():
            if len(options) < 2:
                raise ValueError(f"readings.{choice}: a choice must have at least two options")
        return self

    def all_readings(self) -> list[Reading]:
        """Every combination of the options of the open choices; one reading if there is no choice."""
        readings = []
        for names in itertools.product(*self.readings.values()):
            rule, read, args = self.rule, self.read, self.args
            for choice, name in zip(self.readings, names, strict=True):
                option = self.readings[choice][name]
                rule, read = option.rule or rule, option.read or read
                args = {key: value for key, value in (args | option.args).items() if value is not None}
            readings.append(Reading(dict(zip(self.readings, names, strict=True)), rule, read, args))
        return readings


class SmallSetting(_Strict):
    """A smaller setting of a reproduction.

    Attributes:
        seeds: number of seeds.
        set: changes of every panel, ``key.path=value``.
        panels: further changes of single panels.
        search_rounds: rounds of a trial of the search; default: as at the paper's scale.
        methods: the labels that run; default: all.
        without: panels that are left out, with the claims about them.
    """

    seeds: int = 1
    set: list[str] = []
    panels: dict[str, list[str]] = {}
    search_rounds: int | None = None
    methods: list[str] = []
    without: list[str] = []


class Sweep(_Strict):
    """One algorithm, or one experiment, for every combination of parameters.

    Attributes:
        over: the values of each parameter. ``$name`` in the algorithm and in the experiment stands for the value.
        along: parameters that are zipped with the first one of ``over`` (same length), such as a step for each alpha.
        baselines: labels of the experiment's algorithms without parameters, drawn as horizontal lines.
        algorithm: the algorithm of the sweep; default: the experiment's algorithms.
        experiment: settings that differ from the panel's experiment at each point.
        label: the label of a curve, such as ``k = {k}, eta = {eta:g}``; ``{method}`` is the algorithm's own label.
    """

    over: dict[str, list[Any]]
    along: dict[str, list[Any]] = {}
    baselines: list[str] = []
    algorithm: dict[str, Any] | None = None
    experiment: dict[str, Any] = {}
    label: str

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Sweep":
        first, count = next((name, len(values)) for name, values in self.over.items())
        for name, values in self.along.items():
            if len(values) != count:
                raise ValueError(f"along.{name} has {len(values)} values: give one for each of the {count} of {first}")
        if self.baselines and (self.algorithm is None or self.experiment):
            raise ValueError("baselines need a sweep of one algorithm: set algorithm, and not experiment")
        return self

    def points(self) -> Iterator[dict[str, Any]]:
        """Every combination of values, by parameter."""
        first, *others = self.over.values()
        for (value, *zipped), *further in itertools.product(zip(first, *self.along.values(), strict=True), *others):
            yield dict(zip(self.over, (value, *further), strict=True)) | dict(zip(self.along, zipped, strict=True))


class Draw(_Strict):
    """How a panel is drawn.

    Attributes:
        x: the horizontal axis: ``rounds``; ``seconds``, ``bytes`` or ``bytes_up`` of a virtual clock; ``lambda`` of the
            measure ``line``; ``days`` of the measure ``wealth_by_day``; a parameter of the sweep, for last values; or
            ``methods``, one bar for each method's last value.
        lines: the parameter of the sweep with one line for each value, or ``method``.
        log_x: whether a sweep's horizontal axis is logarithmic.
    """

    x: str = "rounds"
    lines: str = ""
    log_x: bool = True


class View(_Strict):
    """What is read from the metrics of a run.

    Attributes:
        measure: a metric of the shared or of the personal models; or ``line``, the loss between the two after the last
            round, which the diagnostic ``line`` measures.
        split: the split of the samples; ``train`` for metrics without a split.
        over: how the parties become one number: ``mean``; ``samples``, the mean weighted by their samples of the split;
            ``worst``, ``p10`` (nine parties in ten do better), ``std``; or ``party 3``.
        axis: the title of the vertical axis.
        log: whether the vertical axis is logarithmic.
        baselines: the baselines that an experiment on prices shows with the methods, see ``backtests``. They
            have the metrics of a back-test and ``wealth_by_day``, the wealth on each day of a split after the last
            round.
    """

    measure: str
    split: str
    over: str
    axis: str
    log: bool
    baselines: list[str] = []

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values of the measure are better."""
        return higher_is_better(self.measure)


class Panel(_Strict):
    """One picture, and the experiment that it shows.

    Attributes:
        experiment: settings that differ from the reproduction's experiment.
        of: another panel, whose runs this one shows by another measure; nothing runs twice.
        tuned: another panel, whose search chooses this one's parameters.
        sweep: a sweep of algorithms or of experiments.
        combinator: a combinator applied to every algorithm.
        draw: how it is drawn.
        measure: replaces the reproduction's; so do ``split``, ``over``, ``axis``, ``log`` and ``baselines``.
    """

    experiment: dict[str, Any] = {}
    of: str = ""
    tuned: str = ""
    sweep: Sweep | None = None
    combinator: dict[str, Any] | None = None
    draw: list[Draw] = [Draw()]
    measure: str | None = None
    split: str | None = None
    over: str | None = None
    axis: str | None = None
    log: bool | None = None
    baselines: list[str] | None = None


class Criterion(_Strict):
    """What a search optimizes: the last value of a measure, see ``View``.

    Attributes:
        measure: a metric.
        split: the split of the samples.
        over: how the parties become one number.
    """

    measure: str
    split: str = "validation"
    over: str = "mean"


class Search(_Strict):
    """A grid search of parameters that the paper leaves open, with the same number of trials for every method.

    Attributes:
        select: what is optimized.
        grid: for each label, or ``*`` for every label, the values of each parameter. Its path is relative to the
            algorithm, such as ``mu`` or ``solver.learning_rate``.
        rounds: rounds of a trial; default: the experiment's.
        seeds: number of seeds of a trial. They count down from 1000, so that none is among the reported ones.
        panels: the panels that are searched; default: all with runs of their own.
        experiment: settings of the trials that differ from the panel's, such as a training period that ends before the
            validation period on which the trials are compared.
    """

    select: Criterion
    grid: dict[str, dict[str, list[Any]]]
    rounds: int | None = None
    seeds: int = 1
    panels: list[str] | None = None
    experiment: dict[str, Any] = {}

    def points(self, label: str) -> list[dict[str, Any]]:
        """The trials of a method; empty if there is nothing to choose."""
        over = {**self.grid.get("*", {}), **self.grid.get(label, {})}
        return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())] if over else []
