"""The value of every test row with every method: the measurements from which intervals are computed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData, Task
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.predict.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.predict.site_values import SiteRows
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, Predictions, Sampling
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, score_rows
from resolvent.simulator.record.party_metrics import uninformative
from resolvent.simulator.record.result import Result
from resolvent.xla.shapes import shapes_of

_SPLIT = "test"
_MAX_BYTES = 2**28  # size of the personal models that are evaluated at a time
_KEYS = ("seed", "party", "row")
_BY_CLASS: tuple[Sampling, ...] = ("classes", "ranks")

Values = NDArray[np.float64]


class Score(NamedTuple):
    """The number that compares methods.

    Attributes:
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


class RunPredictions(NamedTuple):
    """The predictions of the methods' personal models for the test rows of one seed, or of one fold of it.

    Attributes:
        parties: [P] ids of the parties with test rows.
        rows: for each of them the numbers of its test rows.
        methods: labels of the methods and of a baseline that needs no training.
        of_method: function from such a label to position of a party of this process -> predictions for its rows.
        total: function from values of this process's parties, 0 elsewhere, to those of all processes.
    """

    seed: int
    parties: NDArray[np.integer]
    rows: list[NDArray[np.integer]]
    methods: tuple[str, ...]
    of_method: Callable[[str], dict[int, Predictions]]
    loss: Loss
    task: Task
    total: Callable[[Values], Values]

    def stored(self) -> "RunPredictions":
        """The same predictions, computed now, so that the models are no longer needed."""
        return self._replace(of_method={label: self.of_method(label) for label in self.methods}.__getitem__)


def read_predictions(results: dict[str, Result], rows: NDArray[np.integer] | None = None,
                     is_repeated: NDArray[np.bool_] | None = None, *,
                     is_centred: bool = False) -> RunPredictions | None:
    """The predictions of every method for the test rows, and those of a baseline that needs no training.

    Args:
        rows: [total] the number of each sample in the data as they were before the split; default: 0, 1, and so on.
        is_repeated: [total] the samples that do not count, see ``Fold``; default: none.
        is_centred: whether the probabilities are made comparable with those of other folds, see ``centred``.

    Returns:
        The predictions, which are computed when they are asked for; None if the problem has no samples of its own.
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
    position = [np.arange(o, o + n) for o, n in zip(offset, sizes, strict=True)]
    counts = [np.ones(len(p), bool) if is_repeated is None else ~is_repeated[p] for p in position]
    baseline = baseline_name(data, results)
    has_baseline = isinstance(model.loss, CrossEntropy | BinaryCrossEntropy | SquaredError)

    def of_method(label: str) -> dict[int, Predictions]:
        if label == baseline:
            local = np.concatenate([view.positions for view in first.parties_view.sampled_parties(parties)])
            constant = _constant_predictions(data, parties[local], model.loss)
            predictions = dict(zip(local.tolist(), constant, strict=True))
            train = predictions
        else:
            predictions = _predictions(results[label], parties, data)
            train = _predictions(results[label], parties, data, "train") if is_centred else {}
        if is_centred:
            predictions = {i: p._replace(probabilities=centred(p.probabilities, train[i].probabilities))
                           for i, p in predictions.items()}
        return predictions if is_repeated is None else {i: _chosen(p, counts[i]) for i, p in predictions.items()}

    return RunPredictions(
        first.seed, parties, [(p if rows is None else np.asarray(rows)[p])[c] for p, c in zip(
            position, counts, strict=True)], (*results, *([baseline] if has_baseline else [])), of_method, model.loss,
        data.task, first.parties_view.sum_over_processes)


def measure_rows(runs: Sequence[RunPredictions], score: Score,
                 choices: Mapping[str, Sequence[str]] = MappingProxyType({})) -> RowValues:
    """The value of every test row of one seed with every method.

    The predictions of several folds are put together before the values are computed, so that a metric that is no mean
    over rows is computed once, from all rows of a site.

    If several processes have a part of the samples each, all must call it; each gets the values of all rows.

    Args:
        runs: the predictions of the seed: one run, or one for each fold.
        choices: further labels, each with the method whose predictions it has in each run.
    """
    first = runs[0]
    rows = [np.concatenate([run.rows[i] for run in runs]) for i in range(len(first.parties))]
    sizes = np.array([len(of_party) for of_party in rows])
    sampling = _sampling(score, first.task)
    values, classes = dict[str, Values](), None
    for label, of_runs in ({m: [m] * len(runs) for m in first.methods} | dict(choices)).items():
        predictions = _joined([run.of_method(m) for run, m in zip(runs, of_runs, strict=True)])
        values[label] = first.total(_collect(predictions, sizes, partial(_row_values, score=score, loss=first.loss)))
        if sampling != "rows" and classes is None:
            classes = first.total(_collect(predictions, sizes, _labels)).astype(np.int64)
    return RowValues(np.full(sizes.sum(), first.seed), np.repeat(first.parties, sizes).astype(np.int64),
                     np.concatenate(rows), values, sampling, classes)


def centred(probabilities: NDArray[Any] | None, of_training: NDArray[Any] | None) -> NDArray[np.float64] | None:
    """Probabilities whose order can be compared between the models of several folds.

    With z = log p, they are softmax(z - the mean of z over the model's training rows at the site); for two classes, the
    log-odds are reduced by their mean over the training rows. A fold whose training rows have one positive row less has
    a model with smaller log-odds everywhere, and just this fold tests one positive row more: without the reduction an
    area under the ROC curve over all folds is too small, most for training alone with few positive rows.

    Args:
        probabilities: [n, classes] of the rows that are tested.
        of_training: [m, classes] of the training rows, by the same model.

    References:
        Airola, Pahikkala, Waegeman, De Baets, Salakoski: An experimental comparison of cross-validation techniques for
        estimating the area under the ROC curve, Computational Statistics and Data Analysis 55, 2011 (the bias of
        pooled predictions).
    """
    if probabilities is None or of_training is None:
        return None
    smallest = np.finfo(np.float64).tiny
    scores, mean = (np.log(np.maximum(np.asarray(p, np.float64), smallest)) for p in (probabilities, of_training))
    scores = scores - mean.mean(axis=0)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _chosen(predictions: Predictions, is_chosen: NDArray[np.bool_]) -> Predictions:
    chosen: Predictions = tree.rows(predictions, is_chosen)
    return chosen


def _joined(runs: Sequence[dict[int, Predictions]]) -> dict[int, Predictions]:
    return runs[0] if len(runs) == 1 else {i: Predictions.concatenate([run[i] for run in runs]) for i in runs[0]}


def _sampling(score: Score, task: Task) -> Sampling:
    return "rows" if score.metric is None or task != "classification" else score.metric.sampling


def baseline_name(data: FederatedData, methods: Sequence[str] | dict[str, Any]) -> str:
    """The name of the predictions that need no training; it differs from the labels of all methods."""
    name = "majority class" if data.task == "classification" else "mean of the labels"
    while name in methods:
        name += " (no training)"
    return name


def _predictions(result: Result, parties: NDArray[np.integer], data: FederatedData,
                 split: str = _SPLIT) -> dict[int, Predictions]:
    """The predictions of personal models for the samples of this process: position among the parties -> them."""
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
                                                                          (split,), data.task)
            predictions |= {start + int(choice[p.position]): p.predictions for p in of_block}
    return predictions


def _constant_predictions(data: FederatedData, parties: NDArray[np.integer], loss: Loss) -> list[Predictions]:
    """For each party the frequencies of the classes, or the mean, of its training labels."""
    predictions = []
    for k in parties.tolist():
        train, labels = data.party(k)[1], data.party(k, _SPLIT)[1]
        n = len(labels)
        if isinstance(loss, SquaredError):
            mean = np.broadcast_to(np.mean(train, axis=0), labels.shape)
            predictions.append(Predictions(labels, mean, None, mean))
            continue
        share = np.bincount(train.astype(np.int64), minlength=max(data.outputs, 2)) / len(train)
        share = np.clip(share, 1e-6, 1)
        outputs = np.log(share) if isinstance(loss, CrossEntropy) else np.log(share[1] / share[0])
        predictions.append(Predictions(labels, np.full(n, np.argmax(share)), np.tile(share / share.sum(), (n, 1)),
                                       np.tile(outputs, (n, *(1,) * np.ndim(outputs)))))
    return predictions


def _collect(predictions: dict[int, Predictions], sizes: NDArray[np.integer],
             values_of: Callable[[list[Predictions]], Values]) -> Values:
    """[R] the value of each row of the parties of this process, 0 for the others.

    Args:
        predictions: position of a party -> the predictions for its rows, for the parties of this process.
        sizes: [P] number of rows of each party.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)])
    values = np.zeros(starts[-1])
    if predictions:
        index = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in predictions])
        values[index] = values_of(list(predictions.values()))
    return values


def _labels(predictions: list[Predictions]) -> Values:
    return np.concatenate([p.labels for p in predictions]).astype(np.float64)


def _row_values(predictions: list[Predictions], score: Score, loss: Loss) -> Values:
    """[R] the value of each row of all parties; the worst infinity where a model diverged."""
    worst = -np.inf if score.higher_is_better else np.inf
    if score.metric is not None:
        return np.concatenate([_metric_rows(p, score.metric, worst) for p in predictions])
    # A loss that compares the samples of a minibatch compares those of one party.
    parts = predictions if loss.needs_batch else [Predictions.concatenate(predictions)]
    values = np.concatenate([_losses_or_scores(loss, p.outputs, p.labels, is_loss=score.name == "loss") for p in parts])
    return np.nan_to_num(np.asarray(values, dtype=np.float64), nan=worst, posinf=np.inf, neginf=-np.inf)


def _metric_rows(predictions: Predictions, metric: Metric, worst: float) -> Values:
    """[n] the values whose mean is a metric of one party; ``worst`` if its model diverged."""
    if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(predictions.outputs)):
        return metric.row_values(predictions)
    is_defined = not np.isnan(metric.value(uninformative(predictions)))
    return np.full(tree.count_rows(predictions.outputs), worst if is_defined else np.nan)


@partial(jax.jit, static_argnames="is_loss")
def _losses_or_scores(loss: Loss, outputs: Any, labels: Any, *, is_loss: bool) -> Array:
    return loss.loss(outputs, labels) if is_loss else score_rows(loss, outputs, labels)


def measure_models(models: Mapping[str, Vector], problem: LearningProblem, data: FederatedData, score: Score, *,
                   seed: int, party: int, rows: NDArray[np.integer] | None = None) -> RowValues | None:
    """The value of every test row of one party with each of its models, and with predictions that need no training.

    Args:
        models: method -> the party's model.
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
    loss, sampling = problem.model.loss, _sampling(score, data.task)
    if isinstance(loss, CrossEntropy | BinaryCrossEntropy | SquaredError):
        predictions[baseline_name(data, predictions)] = _constant_predictions(data, first, loss)
    return RowValues(np.full(len(position), seed), np.full(len(position), party, np.int64),
                     position if rows is None else np.asarray(rows)[position],
                     {label: _row_values(of_label, score, loss) for label, of_label in predictions.items()},
                     sampling, None if sampling == "rows" else _labels(
                         next(iter(predictions.values()))).astype(np.int64))
