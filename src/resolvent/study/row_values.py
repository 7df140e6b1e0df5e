"""The value of every test row with every method: the measurements from which intervals are computed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, Predictions
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError
from resolvent.problem.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.problem.subset import PartySubset
from resolvent.simulate.result import Result

__all__ = ["RowValues", "Score", "SiteRows", "baseline_name", "measure_rows"]

_SPLIT = "test"
_MAX_BYTES = 2**28  # size of the personal models that are evaluated at a time
_MAX_GROUPS = 50  # number of groups of rows that the jackknife leaves out in turn
_KEYS = ("seed", "party", "row")

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


class SiteRows(NamedTuple):
    """The test rows of one site.

    Attributes:
        values: method -> [S, n] the value of each row with each seed; nan where the row was not tested.
        is_tested: [S, n] whether a row is a test row of a seed.
    """

    values: dict[str, Values]
    is_tested: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RowValues:
    """The values of the test rows of all sites and seeds.

    Attributes:
        seed: [R] the seed of the run.
        party: [R] id of the party.
        row: [R] number of the row in the data, the same in every seed.
        values: method -> [R] the value of the row. The mean over the rows of a party is the score of the party.
    """

    seed: NDArray[np.int64]
    party: NDArray[np.int64]
    row: NDArray[np.int64]
    values: dict[str, Values]

    @classmethod
    def concatenate(cls, parts: Sequence["RowValues"]) -> "RowValues":
        """The rows of several seeds, measured with the same methods."""
        seed, party, row = (np.concatenate([getattr(p, name) for p in parts]) for name in _KEYS)
        return cls(seed, party, row, {m: np.concatenate([p.values[m] for p in parts]) for m in parts[0].values})

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
            yield int(party), SiteRows(values, is_tested)

    def write(self, path: Path) -> None:
        """Write a Parquet file with the columns seed, party and row, and ``value METHOD`` for each method."""
        import pandas as pd

        columns: dict[str, Any] = {name: getattr(self, name) for name in _KEYS}
        columns |= {f"value {method}": values for method, values in self.values.items()}
        pd.DataFrame(columns).to_parquet(path, index=False)

    @classmethod
    def read(cls, path: Path) -> "RowValues":
        """Read a file that ``write`` wrote."""
        import pandas as pd

        frame = pd.read_parquet(path)
        seed, party, row = (frame[name].to_numpy(dtype=np.int64) for name in _KEYS)
        return cls(seed, party, row, {c.removeprefix("value "): frame[c].to_numpy(dtype=float)
                                     for c in frame.columns if c not in _KEYS})


def measure_rows(results: dict[str, Result], score: Score, rows: NDArray[np.integer] | None = None) -> RowValues | None:
    """The value of every test row with the personal models of every method, and with a baseline that needs no training.

    Args:
        results: the results of one seed, by method.
        score: the number that compares methods.
        rows: [total] the number of each sample in the data as they were before the split of this seed; default: 0, 1,
            and so on.

    Returns:
        The rows; None if the problem has no samples of its own.
    """
    first = next(iter(results.values()))
    data, problem = first.data, first.problem
    if data is None or first.model is None:
        return None
    if type(problem) not in (LearningProblem, PartySubset):  # the parties are divided among devices
        problem = LearningProblem(first.model, data)
    inner = problem.inner if isinstance(problem, PartySubset) else problem
    assert isinstance(inner, LearningProblem)
    parties = _evaluated(problem)
    sizes = data.sizes(_SPLIT)[parties]
    parties, sizes = parties[sizes > 0], sizes[sizes > 0]
    if not len(parties):
        return None
    offset = data.splits[_SPLIT].offset[parties]
    position = np.concatenate([np.arange(o, o + n) for o, n in zip(offset, sizes, strict=True)])
    values = {label: _row_values(_predictions(result, problem, parties, data), score, inner.model.loss)
              for label, result in results.items()}
    constant = _constant_predictions(data, parties, inner.model.loss)
    if constant is not None:
        values[baseline_name(data, values)] = _row_values(constant, score, inner.model.loss)
    return RowValues(np.full(len(position), first.seed), np.repeat(parties, sizes).astype(np.int64),
                    position if rows is None else np.asarray(rows)[position], values)


def baseline_name(data: FederatedData, methods: Sequence[str] | dict[str, Any]) -> str:
    """The name of the predictions that need no training; it differs from the labels of all methods."""
    name = "majority class" if data.task == "classification" else "mean of the labels"
    while name in methods:
        name += " (no training)"
    return name


def _evaluated(problem: Any) -> NDArray[np.integer]:
    """The ids of the parties whose samples a problem has."""
    if not isinstance(problem, PartySubset):
        return np.arange(problem.parties)
    numbers = np.asarray(problem.numbers)
    return numbers[numbers < np.iinfo(np.int32).max]


def _predictions(result: Result, problem: Any, parties: NDArray[np.integer],
                 data: FederatedData) -> list[Predictions]:
    """The predictions of the parties' personal models for their test samples."""
    model = jax.tree.leaves(jax.eval_shape(lambda: result.problem.init(jax.random.key(0))))
    size = sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in model)
    block = int(np.clip(_MAX_BYTES // max(size, 1), 1, len(parties)))
    predictions: list[Predictions] = []
    for start in range(0, len(parties), block):
        ids = parties[start:start + block]
        filled = np.concatenate([ids, np.repeat(ids[-1:], block - len(ids))])  # the shape of the other blocks
        models = result.models_of(filled)
        of_block: Iterator[PartyPredictions] = predictions_of_parties(problem, models, np.arange(len(ids)), ids,
                                                                      (_SPLIT,), data.task)
        predictions += [p.predictions for p in of_block]
    return predictions


def _constant_predictions(data: FederatedData, parties: NDArray[np.integer], loss: Loss) -> list[Predictions] | None:
    """For each party the frequencies of the classes, or the mean, of its training labels; None for other losses."""
    if not isinstance(loss, CrossEntropy | BinaryCrossEntropy | SquaredError):
        return None
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


def _row_values(predictions: list[Predictions], score: Score, loss: Loss) -> Values:
    """[R] the value of each row of all parties."""
    if score.metric is not None:
        return np.concatenate([_influences(p, score.metric) for p in predictions])
    outputs, labels = (np.concatenate([getattr(p, name) for p in predictions]) for name in ("outputs", "labels"))
    function = loss.loss if score.name == "loss" else loss.score
    return np.asarray(jax.jit(function)(jnp.asarray(outputs), jnp.asarray(labels)), dtype=np.float64)


def _influences(predictions: Predictions, metric: Metric) -> Values:
    """[n] values whose mean is the metric, and whose variance is n times the variance of the metric.

    They are the pseudo-values of the jackknife, which leaves out every row in turn, or with more than 50 rows each of
    50 groups. If the metric is not defined without a group, the influence of this group is set to 0.
    """
    n, value = len(predictions.labels), metric.value(predictions)
    if not np.isfinite(value):
        return np.full(n, np.nan)
    group = np.arange(n) % _MAX_GROUPS
    influence = np.zeros(n)
    for number in range(min(n, _MAX_GROUPS)):
        is_left = group != number
        count = int(n - is_left.sum())
        left = Predictions(*(None if a is None else a[is_left] for a in predictions))  # type: ignore[arg-type]
        without = metric.value(left) if n > count else np.nan
        if np.isfinite(without):
            influence[~is_left] = (n - count) / np.sqrt(count) * (value - without)
    result: Values = value + influence - influence.mean()
    return result
