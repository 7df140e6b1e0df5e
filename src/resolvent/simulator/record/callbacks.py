"""Callbacks for the evaluations of a run: stop early, save the best models, write curves to files or other programs.

``EarlyStopping`` and ``KeepBest`` decide by a metric; ``CSV``, ``TensorBoard``, ``MLflow`` and ``WandB`` write means
over parties. Their state is the table of metrics, so that a resumed run continues them. A function of your own takes an
``EvaluationEvent``.
"""

import hashlib
import re
from abc import abstractmethod
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from resolvent.arguments import CheckedArguments
from resolvent.data.files.atomic_files import hidden_sibling, remove_folder, write_atomically
from resolvent.errors import InputError, check_range
from resolvent.simulator.record.events import EvaluationEvent

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CSV", "Callback", "EarlyStopping", "EvaluationEvent", "KeepBest", "MLflow", "TensorBoard", "WandB"]


_MAX_LABEL = 150  # bytes of a method's name in a file name


@dataclass(eq=False)
class Callback(CheckedArguments):
    """Base class of objects that are called at the evaluations of runs. One object serves several methods and seeds.

    Example:
        >>> class StopAfter(rv.callbacks.Callback):
        ...     "Stops a run after a number of rounds."
        ...     def __call__(self, event):
        ...         if event.round >= 100:
        ...             event.stop("100 rounds are enough")
    """

    @abstractmethod
    def __call__(self, event: EvaluationEvent) -> None:
        """Read an evaluation of a run, and stop the run if it should end."""

    def close(self) -> None:
        """Release resources after a run."""


@dataclass(eq=False)
class EarlyStopping(Callback):
    """Stop a run whose mean score has not improved in the last evaluations.

    Attributes:
        patience: number of evaluations without an improvement after which the run stops, at least 1.
        metric: name of the metric; default: the score.
        split: the samples on which it is measured: ``validation``, or ``train``.
        min_improvement: smallest change that counts as an improvement.
        higher_is_better: whether a larger value is better; default: as the loss, the score or the metric defines it.

    Raises:
        InputError: ``patience`` or ``min_improvement`` is out of range; when it is called: there is no such metric.

    Example:
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.logistic(64, 10), rv.datasets.digits(), rounds=30,
        ...                      on_evaluation=rv.callbacks.EarlyStopping(patience=3), progress=False)
        >>> result.rounds <= 30
        True
    """

    patience: int = 5
    metric: str | None = None
    split: str = "validation"
    min_improvement: float = 0.0
    higher_is_better: bool | None = None

    def __post_init__(self) -> None:
        check_range(self, "[1, inf)", patience=self.patience)
        check_range(self, "[0, inf)", min_improvement=self.min_improvement)

    @override
    def __call__(self, event: EvaluationEvent) -> None:
        values = _larger_is_better(event, self.metric, self.split, self.higher_is_better)
        best, since = -float("inf"), 0
        for value in values:
            is_better = value > best + self.min_improvement
            best, since = (value, 0) if is_better else (best, since + 1)
        if since >= self.patience:
            name = event.score_name if self.metric is None else self.metric
            event.stop(f"{self.split} {name} has not improved in {since} evaluations, after round {event.round}")


@dataclass(eq=False)
class KeepBest(Callback):
    """Save the models of the best evaluation to a folder, from which ``rv.load`` reads them.

    Attributes:
        folder: parent of a folder per method and seed, such as ``best/FedAvg-seed-0``.
        metric: name of the metric; default: the score.
        split: the samples on which it is measured: ``validation``, or ``train``.
        higher_is_better: whether a larger value is better; default: as the loss, the score or the metric defines it.

    Example:
        >>> callback = rv.callbacks.KeepBest("best")
    """

    folder: str
    metric: str | None = None
    split: str = "validation"
    higher_is_better: bool | None = None

    @override
    def __call__(self, event: EvaluationEvent) -> None:
        values = _larger_is_better(event, self.metric, self.split, self.higher_is_better)
        of_rounds = values.loc[values.index > 0].dropna()  # the first model is not a result of the run
        if of_rounds.empty or of_rounds.idxmax() != event.round:
            return
        target = Path(self.folder).expanduser() / label_of(event)
        work, old = hidden_sibling(target, "best"), hidden_sibling(target, "old")
        remove_folder(work)
        event.result().save(work)
        # The earlier models stay until the new ones are complete.
        remove_folder(old)
        if target.exists():
            target.rename(old)
        work.rename(target)
        remove_folder(old)


@dataclass(eq=False)
class CSV(Callback):
    """Write the mean over parties of every metric to a file per method and seed, such as ``FedAvg-seed-0.csv``.

    The file has a row per evaluation, with the columns ``round``, ``test/accuracy`` and so on. It is replaced at every
    evaluation, so that it is always complete.

    Attributes:
        folder: the folder of the files.

    Example:
        >>> callback = rv.callbacks.CSV("curves")
    """

    folder: str

    @override
    def __call__(self, event: EvaluationEvent) -> None:
        import pandas as pd

        table = pd.DataFrame({round_: event.means(round_) for round_ in _evaluated_rounds(event)}).T
        path = Path(self.folder).expanduser() / f"{label_of(event)}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: table.to_csv(temporary, index_label="round"))


@dataclass(eq=False)
class Writer(Callback):
    """Base class of callbacks that write the means of every evaluation to another program."""

    _open: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @abstractmethod
    def begin(self, event: EvaluationEvent) -> tuple[Any, bool]:
        """Open the target of the means of a method and a seed.

        Returns:
            The target, and whether it already has the means of earlier rounds.
        """

    @abstractmethod
    def write(self, target: Any, round: int, means: dict[str, float]) -> None:
        """Write the means of a round."""

    def end(self, target: Any) -> None:
        """Close a target after the last evaluation of its run."""

    @override
    def __call__(self, event: EvaluationEvent) -> None:
        rounds = [event.round]
        if (label := label_of(event)) not in self._open:
            self._open[label], has_earlier = self.begin(event)
            rounds = rounds if has_earlier else _evaluated_rounds(event)
        for round_ in rounds:
            self.write(self._open[label], round_, event.means(round_))

    @override
    def close(self) -> None:
        while self._open:
            self.end(self._open.popitem()[1])


@dataclass(eq=False)
class TensorBoard(Writer):
    """Write the mean over parties of every metric for TensorBoard, with a TensorBoard run per method and seed.

    Attributes:
        folder: the folder that ``tensorboard --logdir`` shows.

    Raises:
        InputError: tensorboardX is not installed.

    Example:
        >>> callback = rv.callbacks.TensorBoard("curves")  # doctest: +SKIP
    """

    folder: str

    def __post_init__(self) -> None:
        _require("tensorboardX", "tensorboard")

    @override
    def begin(self, event: EvaluationEvent) -> tuple[Any, bool]:
        folder = Path(self.folder).expanduser() / label_of(event)
        has_earlier = event.is_resumed and any(folder.glob("events*"))
        return _require("tensorboardX", "tensorboard").SummaryWriter(str(folder)), has_earlier

    @override
    def write(self, target: Any, round: int, means: dict[str, float]) -> None:
        for name, value in means.items():
            target.add_scalar(name, value, round)
        target.flush()

    @override
    def end(self, target: Any) -> None:
        target.close()


@dataclass(eq=False)
class MLflow(Writer):
    """Log the mean over parties of every metric to MLflow, with an MLflow run per method and seed.

    A resumed run becomes a new MLflow run with the values of all rounds.

    Attributes:
        experiment: name of the experiment in MLflow; it is created if there is none.
        tracking_uri: address of the tracking server, or of a database such as ``sqlite:///mlflow.db``; default: that
            of MLflow's own setting.

    Raises:
        InputError: MLflow is not installed.

    Example:
        >>> callback = rv.callbacks.MLflow("hospitals")  # doctest: +SKIP
    """

    experiment: str
    tracking_uri: str | None = None

    def __post_init__(self) -> None:
        _require("mlflow", "mlflow")

    @override
    def begin(self, event: EvaluationEvent) -> tuple[Any, bool]:
        client = _require("mlflow", "mlflow").MlflowClient(self.tracking_uri)
        experiment = client.get_experiment_by_name(self.experiment)
        number = client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
        run = client.create_run(number, run_name=label_of(event)).info.run_id
        for name, value in {"method": event.name, "seed": event.seed, "rounds": event.rounds}.items():
            client.log_param(run, name, value)
        return (client, run), False

    @override
    def write(self, target: Any, round: int, means: dict[str, float]) -> None:
        client, run = target
        for name, value in means.items():
            client.log_metric(run, name, value, step=round)

    @override
    def end(self, target: Any) -> None:
        client, run = target
        client.set_terminated(run)


@dataclass(eq=False)
class WandB(Writer):
    """Log the mean over parties of every metric to Weights & Biases, with a run there per method and seed.

    A resumed run becomes a new run there with the values of all rounds.

    Attributes:
        project: name of the project.
        mode: ``online``, or ``offline`` to write files that ``wandb sync`` sends later.

    Raises:
        InputError: wandb is not installed.

    Example:
        >>> callback = rv.callbacks.WandB("hospitals", mode="offline")  # doctest: +SKIP
    """

    project: str
    mode: str = "online"

    def __post_init__(self) -> None:
        _require("wandb", "wandb")

    @override
    def begin(self, event: EvaluationEvent) -> tuple[Any, bool]:
        config = {"method": event.name, "seed": event.seed, "rounds": event.rounds}
        return _require("wandb", "wandb").init(project=self.project, name=label_of(event), config=config,
                                               mode=self.mode, reinit="create_new"), False

    @override
    def write(self, target: Any, round: int, means: dict[str, float]) -> None:
        target.log(means, step=round)

    @override
    def end(self, target: Any) -> None:
        target.finish()


def label_of(event: EvaluationEvent) -> str:
    """Method and seed as a file name. A name that cannot be one as it is gets a digest, so that no two become one."""
    name = re.sub(r"[^\w.+=() -]", "_", event.name).strip(". ")
    name = name.encode()[:_MAX_LABEL].decode(errors="ignore") or "run"
    if name != event.name:
        name += f"-{hashlib.sha256(event.name.encode(errors='surrogatepass')).hexdigest()[:8]}"
    return f"{name}-seed-{event.seed}"


def _evaluated_rounds(event: EvaluationEvent) -> list[int]:
    rows = event.metrics[event.metrics["metric"] == "loss"]
    return sorted({int(round_) for round_ in rows["round"]})


def _larger_is_better(event: EvaluationEvent, metric: str | None, split: str,
                      higher_is_better: bool | None) -> "pd.Series[float]":
    """The means of a metric by round, negated if smaller values are better."""
    values, name = event.history(metric, split), event.score_name if metric is None else metric
    direction = event.directions.get(name.removeprefix("global_")) if higher_is_better is None else higher_is_better
    if direction is None:
        raise InputError(f"whether a larger {name} is better is not known: set higher_is_better")
    return values if direction else -values


def _require(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(f"{module} is not installed: pip install 'resolvent[{extra}]'") from error
