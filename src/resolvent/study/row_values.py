"""The value of every test row with every method: the measurements from which intervals are computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, Predictions, Sampling
from resolvent.problem.metrics.site_values import SiteRows
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, score_rows
from resolvent.problem.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.simulator.party_metrics import uninformative
from resolvent.simulator.result import Result
from resolvent.xla.shapes import shapes_of

__all__ = ["RowValues", "Score", "baseline_name", "measure_models", "measure_rows"]

_SPLIT = "test"
_MAX_BYTES = 2**28  # size of the personal models that are evaluated at a time
_KEYS = ("seed", "party", "row")
_BY_CLASS: tuple[Sampling, ...] = ("classes", "ranks")

Values = NDArray[np.float64]


class Score(NamedTuple):
    """The number that compares methods.

    Attributes:
        name: name in the table of metrics.
        higher_is_better: whether larger values are better.
        metric: computes the score from all samples of a party; None for the mean of the loss or of the loss's score.
    """

    name: str
    higher_is_better: bool
    metric: Metric | None = None


@dataclass(frozen=True, eq=False)
class RowValues:
    """The values of the test rows of all sites and seeds.

    Attributes:
        seed: [R] the seed of the run.
        party: [R] id of the party.
        row: [R] number of the row in the data, the same in every seed.
        values: method -> [R] the value of the row. The mean over the rows of a party is the score of the party. It is
            the worst infinity where the outputs of the model are not finite, because the training diverged.
        sampling: how intervals resample the rows, see ``Metric``.
        classes: [R] the class of the row; None if ``sampling`` is ``rows``.
    """

    seed: NDArray[np.int64]
    party: NDArray[np.int64]
    row: NDArray[np.int64]
    values: dict[str, Values]
    sampling: Sampling = "rows"
    classes: NDArray[np.int64] | None = None

    @classmethod
    def concatenate(cls, parts: Sequence["RowValues"]) -> "RowValues":
        """The rows of several seeds, measured with the same methods."""
        seed, party, row = (np.concatenate([getattr(p, name) for p in parts]) for name in _KEYS)
        classes = None if parts[0].classes is None else np.concatenate(
            [p.classes for p in parts if p.classes is not None])
        return cls(seed, party, row, {m: np.concatenate([p.values[m] for p in parts]) for m in parts[0].values},
                   parts[0].sampling, classes)

    def sites(self) -> Iterator[tuple[int, SiteRows]]:
        """The id and the rows of each party that has test rows."""
        seeds = np.unique(self.seed)
        order = np.argsort(self.party, kind="stable")
        parties, starts = np.unique(self.party[order], return_index=True)
        for party, index in zip(parties, np.split(order, starts[1:]), strict=True):
            rows, column = np.unique(self.row[index], return_inverse=True)
            cells = (np.searchsorted(seeds, self.seed[index]), column)
            is_tested = np.zeros((len(seeds), len(rows)), bool)
            is_tested[cells] = True
            values = {}
            for method, of_method in self.values.items():
                values[method] = np.full(is_tested.shape, np.nan)
                values[method][cells] = of_method[index]
            classes = None
            if self.classes is not None:
                classes = np.zeros(len(rows), np.int64)
                classes[column] = self.classes[index]
            yield int(party), SiteRows(values, is_tested, classes)

    def write(self, path: Path) -> None:
        """Write a Parquet file with the columns seed, party and row, and ``value METHOD`` for each method.

        A column named after ``sampling``, such as ``classes``, has the class of each row where intervals need it.
        """
        import pandas as pd

        columns: dict[str, Any] = {name: getattr(self, name) for name in _KEYS}
        if self.classes is not None:
            columns[self.sampling] = self.classes
        columns |= {f"value {method}": values for method, values in self.values.items()}
        pd.DataFrame(columns).to_parquet(path, index=False)

    @classmethod
    def read(cls, path: Path) -> "RowValues":
        """Read a file that ``write`` wrote."""
        import pandas as pd

        frame = pd.read_parquet(path)
        seed, party, row = (frame[name].to_numpy(dtype=np.int64) for name in _KEYS)
        sampling: Sampling = next((name for name in _BY_CLASS if name in frame), "rows")
        classes = None if sampling == "rows" else frame[sampling].to_numpy(dtype=np.int64)
        return cls(seed, party, row, {c.removeprefix("value "): frame[c].to_numpy(dtype=float)
                                     for c in frame.columns if c.startswith("value ")}, sampling, classes)


def measure_rows(results: dict[str, Result], score: Score, rows: NDArray[np.integer] | None = None) -> RowValues | None:
    """The value of every test row with the personal models of every method, and with a baseline that needs no training.

    If several processes have a part of the samples each, all must call it; each gets the values of all rows.

    Args:
        results: the results of one seed, by method.
        score: the number that compares methods.
        rows: [total] the number of each sample in the data as they were before the split of this seed; default: 0, 1,
            and so on.

    Returns:
        The rows; None if the problem has no samples of its own.
    """
    first = next(iter(results.values()))
    data, model = first.data, first.model
    if data is None or model is None:
        return None
    parties = first.parties_view.party_ids()
    parties = parties[data.sizes(_SPLIT)[parties] > 0]
    if not len(parties):
        return None
    sizes, offset = data.sizes(_SPLIT)[parties], data.splits[_SPLIT].offset[parties]
    position = np.concatenate([np.arange(o, o + n) for o, n in zip(offset, sizes, strict=True)])
    by_class, loss = _is_by_class(score, data), model.loss
    values, classes = dict[str, Values](), None
    for label, result in results.items():
        predictions = _predictions(result, parties, data)
        values[label] = _collect(result, predictions, sizes, partial(_row_values, score=score, loss=loss))
        if by_class and classes is None:
            classes = _collect(result, predictions, sizes, _labels).astype(np.int64)
    if isinstance(loss, CrossEntropy | BinaryCrossEntropy | SquaredError):
        local = np.concatenate([view.positions for view in first.parties_view.sampled_parties(parties)])
        constant = dict(zip(local.tolist(), _constant_predictions(data, parties[local], loss), strict=True))
        values[baseline_name(data, values)] = _collect(first, constant, sizes,
                                                       partial(_row_values, score=score, loss=loss))
    return RowValues(np.full(len(position), first.seed), np.repeat(parties, sizes).astype(np.int64),
                     position if rows is None else np.asarray(rows)[position], values, _sampling(score, data), classes)


def _is_by_class(score: Score, data: FederatedData) -> bool:
    return _sampling(score, data) != "rows"


def _sampling(score: Score, data: FederatedData) -> Sampling:
    return "rows" if score.metric is None or data.task != "classification" else score.metric.sampling


def baseline_name(data: FederatedData, methods: Sequence[str] | dict[str, Any]) -> str:
    """The name of the predictions that need no training; it differs from the labels of all methods."""
    name = "majority class" if data.task == "classification" else "mean of the labels"
    while name in methods:
        name += " (no training)"
    return name


def _predictions(result: Result, parties: NDArray[np.integer], data: FederatedData) -> dict[int, Predictions]:
    """The predictions of personal models for the test samples of this process: position among the parties -> them."""
    model = jax.tree.leaves(shapes_of(result.problem.init, jax.random.key(0)))
    size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in model)
    block = int(np.clip(_MAX_BYTES // max(size, 1), 1, len(parties)))
    views, predictions = result.parties_view.sampled_parties(parties), dict[int, Predictions]()
    for start in range(0, len(parties), block):
        ids = parties[start:start + block]
        filled = np.concatenate([ids, np.repeat(ids[-1:], block - len(ids))])  # the shape of the other blocks
        models = result.models_of(filled)
        for problem, positions in views:
            choice = positions[(positions >= start) & (positions < start + len(ids))] - start
            of_block: Iterator[PartyPredictions] = predictions_of_parties(problem, models, choice, ids[choice],
                                                                          (_SPLIT,), data.task)
            predictions |= {start + int(choice[p.position]): p.predictions for p in of_block}
    return predictions


def _constant_predictions(data: FederatedData, parties: NDArray[np.integer], loss: Loss) -> list[Predictions]:
    """For each party the frequencies of the classes, or the mean, of its training labels."""
    predictions = []
    for k in parties.tolist():
        train, labels = data.party(k)[1], data.party(k, _SPLIT)[1]
        n = len(labels)
        if isinstance(loss, SquaredError):
            mean = np.full(n, np.mean(train))
            predictions.append(Predictions(labels, mean, None, mean))
            continue
        share = np.bincount(train.astype(np.int64), minlength=max(data.outputs, 2)) / len(train)
        share = np.clip(share, 1e-6, 1)
        outputs = np.log(share) if isinstance(loss, CrossEntropy) else np.log(share[1] / share[0])
        predictions.append(Predictions(labels, np.full(n, np.argmax(share)), np.tile(share / share.sum(), (n, 1)),
                                       np.tile(outputs, (n, *(1,) * np.ndim(outputs)))))
    return predictions


def _collect(result: Result, predictions: dict[int, Predictions], sizes: NDArray[np.integer],
             values_of: Callable[[list[Predictions]], Values]) -> Values:
    """[R] the value of each row of all parties.

    Args:
        result: a result of the run, which says whether the parties are divided among processes.
        predictions: position of a party -> the predictions for its rows, for the parties of this process.
        sizes: [P] number of rows of each party.
        values_of: the values of all rows of some parties.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    values = np.zeros(starts[-1])
    if predictions:
        index = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in predictions])
        values[index] = values_of(list(predictions.values()))
    return result.parties_view.sum_over_processes(values)


def _labels(predictions: list[Predictions]) -> Values:
    return np.concatenate([p.labels for p in predictions]).astype(np.float64)


def _row_values(predictions: list[Predictions], score: Score, loss: Loss) -> Values:
    """[R] the value of each row of all parties; the worst infinity where a model diverged."""
    worst = -np.inf if score.higher_is_better else np.inf
    if score.metric is not None:
        return np.concatenate([_metric_rows(p, score.metric, worst) for p in predictions])
    outputs, labels = (np.concatenate([getattr(p, name) for p in predictions]) for name in ("outputs", "labels"))
    values = _losses_or_scores(loss, jnp.asarray(outputs), jnp.asarray(labels), is_loss=score.name == "loss")
    return np.nan_to_num(np.asarray(values, dtype=np.float64), nan=worst, posinf=np.inf, neginf=-np.inf)


def _metric_rows(predictions: Predictions, metric: Metric, worst: float) -> Values:
    """[n] the values whose mean is a metric of one party; ``worst`` if its model diverged."""
    if np.isfinite(predictions.outputs).all():
        return metric.row_values(predictions)
    is_defined = not np.isnan(metric.value(uninformative(predictions)))
    return np.full(len(predictions.labels), worst if is_defined else np.nan)


@partial(jax.jit, static_argnames="is_loss")
def _losses_or_scores(loss: Loss, outputs: Array, labels: Array, *, is_loss: bool) -> Array:
    return loss.loss(outputs, labels) if is_loss else score_rows(loss, outputs, labels)


def measure_models(models: Mapping[str, Vector], problem: LearningProblem, data: FederatedData, score: Score, *,
                   seed: int, party: int, rows: NDArray[np.integer] | None = None) -> RowValues | None:
    """The value of every test row of one party with each of its models, and with predictions that need no training.

    Args:
        models: method -> the party's model.
        problem: the problem of the party alone.
        data: its samples.
        score: the number that compares methods.
        seed: seed of the run.
        party: id of the party in the federation.
        rows: [total] the number of each sample before the split of this seed; default: 0, 1, and so on.

    Returns:
        The rows; None if the party has no test samples.
    """
    first, split = np.zeros(1, np.int32), data.splits[_SPLIT]
    position = np.arange(split.offset[0], split.offset[0] + split.length[0])
    if not len(position):
        return None
    predictions = {label: [p.predictions for p in predictions_of_parties(
        problem, tree.stack(model, 1), first, first, (_SPLIT,), data.task)] for label, model in models.items()}
    loss = problem.model.loss
    if isinstance(loss, CrossEntropy | BinaryCrossEntropy | SquaredError):
        predictions[baseline_name(data, predictions)] = _constant_predictions(data, first, loss)
    return RowValues(np.full(len(position), seed), np.full(len(position), party, np.int64),
                     position if rows is None else np.asarray(rows)[position],
                     {label: _row_values(of_label, score, loss) for label, of_label in predictions.items()},
                     _sampling(score, data),
                     _labels(next(iter(predictions.values()))).astype(np.int64) if _is_by_class(score, data) else None)
