"""The value of every test row with every method: the measurements from which intervals are computed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from resolvent.comparisons.judgement.advice import LabelKind, base_loss
from resolvent.comparisons.judgement.calibration_slope import winning_log_odds
from resolvent.comparisons.judgement.column_tests import MOST_COLUMNS, ColumnSums, column_sums
from resolvent.data.federated import SPLITS, FederatedData, Task
from resolvent.data.files.data_files import read_parquet
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.predict.party_predictions import PartyPredictions, predictions_of_parties
from resolvent.predict.site_values import SiteRows
from resolvent.problem.learning import LearningProblem
from resolvent.problem.metrics.metric import Metric, Predictions, Sampling
from resolvent.problem.models.losses import BinaryCrossEntropy, CrossEntropy, Loss, SquaredError, score_rows
from resolvent.problem.models.model import LinearModel, Model
from resolvent.simulator.record.party_metrics import uninformative
from resolvent.simulator.record.result import Result
from resolvent.xla.shapes import shapes_of

_SPLIT = "test"
_MAX_BYTES = 2**28  # size of the personal models that are evaluated at a time
_KEYS = ("seed", "party", "row")
_BY_CLASS: tuple[Sampling, ...] = ("classes", "ranks")
_PLAIN = (CrossEntropy, BinaryCrossEntropy, SquaredError)  # losses with predictions that need no training

Quantity = Literal["loss", "shared", "predictor", "outcome"]
"""Of a method at a row: the loss of the personal model; the loss of the shared model; the linear predictor of the
shared model for ``calibration_slope``, and the 0 or 1, or the number, that it predicts."""
_QUANTITIES: tuple[Quantity, ...] = ("loss", "shared", "predictor", "outcome")
_KINDS: tuple[LabelKind, ...] = ("binary", "classes", "numbers", "other")

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
        kind: what the labels are.
        labels: [R] class numbers or numbers; nan if they are neither.
        base: [R] loss of the best constant at the row's site, by all labels of the site; None for other labels.
        models: (method, quantity) -> [R], see ``Quantity``: what the advice reads of the models.
        columns: (method, party) -> the sums of the tests of the inputs of a linear model, of the first seed.
        column_names: the names of the inputs.
    """

    seed: NDArray[np.int64]
    party: NDArray[np.int64]
    row: NDArray[np.int64]
    values: dict[str, Values]
    sampling: Sampling = "rows"
    classes: NDArray[np.int64] | None = None
    kind: LabelKind = "other"
    labels: Values | None = None
    base: Values | None = None
    models: Mapping[tuple[str, Quantity], Values] = field(default_factory=dict)
    columns: Mapping[tuple[str, int], ColumnSums] = field(default_factory=dict)
    column_names: tuple[str, ...] = ()

    @classmethod
    def concatenate(cls, parts: Sequence["RowValues"]) -> "RowValues":
        """The rows of several seeds, measured with the same methods."""
        seed, party, row = (np.concatenate([getattr(p, name) for p in parts]) for name in _KEYS)
        classes = None if parts[0].classes is None else np.concatenate(
            [p.classes for p in parts if p.classes is not None])
        labels, base = (None if getattr(parts[0], name) is None else np.concatenate([getattr(p, name) for p in parts])
                        for name in ("labels", "base"))
        return cls(seed, party, row, {m: np.concatenate([p.values[m] for p in parts]) for m in parts[0].values},
                   parts[0].sampling, classes, parts[0].kind, labels, base,
                   {key: np.concatenate([p.models[key] for p in parts]) for key in parts[0].models},
                   parts[0].columns, parts[0].column_names)

    def chosen(self, index: NDArray[Any] | slice, labels: Mapping[str, str] | None = None) -> "RowValues":
        """Some of the rows, in this order.

        Args:
            index: numbers of rows, or a mask.
            labels: method -> its label in the result; methods that are not named are left out. Default: all.
        """
        names = {method: method for method in self.values} if labels is None else labels
        return RowValues(
            self.seed[index], self.party[index], self.row[index],
            {label: self.values[method][index] for method, label in names.items()}, self.sampling,
            None if self.classes is None else self.classes[index], self.kind,
            None if self.labels is None else self.labels[index], None if self.base is None else self.base[index],
            {(names[method], quantity): values[index] for (method, quantity), values in self.models.items()
             if method in names},
            {(names[method], party): sums for (method, party), sums in self.columns.items() if method in names},
            self.column_names)

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
        ``label KIND`` has the labels, ``base`` the loss of the best constant at the site, and ``loss METHOD``, ``shared
        METHOD`` and so on what the advice reads.
        """
        import pandas as pd

        columns: dict[str, Any] = {name: getattr(self, name) for name in _KEYS}
        if self.classes is not None:
            columns[self.sampling] = self.classes
        columns |= {f"value {method}": values for method, values in self.values.items()}
        if self.labels is not None:
            columns[f"label {self.kind}"] = self.labels
        if self.base is not None:
            columns["base"] = self.base
        columns |= {f"{quantity} {method}": values for (method, quantity), values in self.models.items()}
        pd.DataFrame(columns).to_parquet(path, index=False)

    @classmethod
    def read(cls, path: Path) -> "RowValues":
        """Read a file that ``write`` wrote.

        Raises:
            InputError: an earlier version wrote it, without the column ``base``.
        """
        frame = read_parquet(path)
        seed, party, row = (frame[name].to_numpy(dtype=np.int64) for name in _KEYS)
        sampling: Sampling = next((name for name in _BY_CLASS if name in frame), "rows")
        classes = None if sampling == "rows" else frame[sampling].to_numpy(dtype=np.int64)
        columns = {c: frame[c].to_numpy(dtype=float) for c in frame.columns}
        kind: LabelKind = next((kind for kind in _KINDS if f"label {kind}" in columns), "other")
        if kind != "other" and "base" not in columns:
            raise InputError(f"{path} was written by an earlier version of resolvent, whose gains had another "
                             "unit: run the experiment again")
        models = {(c.removeprefix(f"{quantity} "), quantity): values for c, values in columns.items()
                  for quantity in _QUANTITIES if c.startswith(f"{quantity} ")}
        return cls(seed, party, row, {c.removeprefix("value "): values for c, values in columns.items()
                                     if c.startswith("value ")}, sampling, classes, kind, columns.get(f"label {kind}"),
                   columns.get("base"), models)


class RunPredictions(NamedTuple):
    """The predictions of the methods' personal models for the test rows of one seed, or of one fold of it.

    Attributes:
        parties: [P] ids of the parties with test rows.
        rows: for each of them the numbers of its test rows.
        base: position of a party of this process -> loss of the best constant, by all its labels; empty for other
            labels.
        methods: labels of the methods and of a baseline that needs no training.
        of_method: function from such a label to position of a party of this process -> predictions for its rows.
        of_shared: the same for the shared model of a method; None if the method has none.
        of_columns: the sums of the tests of the inputs with the shared model of a method; empty if it is not linear.
        column_names: the names of the inputs.
        total: function from values of this process's parties, 0 elsewhere, to those of all processes.
    """

    seed: int
    parties: NDArray[np.integer]
    rows: list[NDArray[np.integer]]
    base: dict[int, float]
    methods: tuple[str, ...]
    of_method: Callable[[str], dict[int, Predictions]]
    of_shared: Callable[[str], dict[int, Predictions] | None]
    of_columns: Callable[[str], dict[int, ColumnSums]]
    column_names: tuple[str, ...]
    loss: Loss
    task: Task
    total: Callable[[Values], Values]

    def stored(self) -> "RunPredictions":
        """The same predictions, computed now, so that the models are no longer needed."""
        return self._replace(of_method={label: self.of_method(label) for label in self.methods}.__getitem__,
                             of_shared={label: self.of_shared(label) for label in self.methods}.__getitem__,
                             of_columns={label: self.of_columns(label) for label in self.methods}.__getitem__)


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
    data, model, view = first.data, first.model, first.parties_view
    if data is None or model is None:
        return None
    parties = view.party_ids()
    parties = parties[data.sizes(_SPLIT)[parties] > 0]
    if not len(parties):
        return None
    here = np.concatenate([of_view.positions for of_view in view.sampled_parties(parties)]).tolist()
    return _run_predictions(
        first.seed, parties, data, parties, here, model, [*results],
        lambda label, split, is_shared: _predictions(results[label], parties, data, split, is_shared=is_shared),
        lambda label: results[label].server_model, rows, is_repeated, is_centred=is_centred,
        has_columns=not view.is_shared, total=view.sum_over_processes)


def predictions_of_models(models: Mapping[str, Vector], shared: Mapping[str, Vector], problem: LearningProblem,
                          data: FederatedData, *, seed: int, party: int, rows: NDArray[np.integer] | None = None,
                          is_repeated: NDArray[np.bool_] | None = None,
                          is_centred: bool = False) -> RunPredictions | None:
    """The predictions of one party's models for its test rows, and of a baseline, see ``read_predictions``.

    Args:
        models: method -> the party's model.
        shared: method -> its shared model, of methods that have one.

    Returns:
        The predictions; None if the party has no test samples.
    """
    if not data.sizes(_SPLIT)[0]:
        return None
    first = np.zeros(1, np.int32)

    def predict(label: str, split: str, is_shared: bool) -> dict[int, Predictions]:
        model = tree.stack((shared if is_shared else models)[label], 1)
        return {0: next(p.predictions for p in predictions_of_parties(problem, model, first, first, (split,),
                                                                      data.task))}

    return _run_predictions(seed, np.array([party], np.int64), data, first, [0], problem.model, [*models], predict,
                            shared.get, rows, is_repeated, is_centred=is_centred).stored()


def _run_predictions(seed: int, parties: NDArray[np.integer], data: FederatedData, owners: NDArray[np.integer],
                     here: list[int], model: Model, methods: Sequence[str],
                     predict: Callable[[str, str, bool], dict[int, Predictions]], shared: Callable[[str], Any],
                     rows: NDArray[np.integer] | None, is_repeated: NDArray[np.bool_] | None, *, is_centred: bool,
                     has_columns: bool = True, total: Callable[[Values], Values] = lambda v: v) -> RunPredictions:
    """The predictions of methods for the test rows of parties; for other arguments see ``read_predictions``.

    Args:
        owners: [P] numbers of the parties in the data.
        here: positions of the parties of this process.
        predict: function from a method, a split and whether the model is the shared one to the predictions.
        shared: function from a method to its shared model, or None.
        has_columns: whether the inputs can be columns, which are tested.
    """
    split, loss = data.splits[_SPLIT], model.loss
    position = [np.arange(o, o + n) for o, n in zip(split.offset[owners], split.length[owners], strict=True)]
    counts = [np.ones(len(p), bool) if is_repeated is None else ~is_repeated[p] for p in position]
    baseline = baseline_name(data, methods)

    def chosen(predictions: dict[int, Predictions]) -> dict[int, Predictions]:
        return predictions if is_repeated is None else {i: tree.rows(p, counts[i]) for i, p in predictions.items()}

    def of_method(label: str) -> dict[int, Predictions]:
        if label == baseline:
            predictions = dict(zip(here, _constant_predictions(data, owners[here], loss), strict=True))
            train = predictions
        else:
            predictions = predict(label, _SPLIT, False)
            train = predict(label, "train", False) if is_centred else {}
        if is_centred:
            predictions = {i: p._replace(probabilities=centred(p.probabilities, train[i].probabilities))
                           for i, p in predictions.items()}
        return chosen(predictions)

    def of_shared(label: str) -> dict[int, Predictions] | None:
        return None if label == baseline or shared(label) is None else chosen(predict(label, _SPLIT, True))

    def of_columns(label: str) -> dict[int, ColumnSums]:
        found = of_shared(label) if has_columns and is_linear(model, data) else None
        return {} if found is None else {i: _column_sums(
            loss, data.party(int(owners[i]), _SPLIT)[0][counts[i]], p, shared(label)) for i, p in found.items()}

    has_base = label_kind(loss) != "other"
    return RunPredictions(
        seed, parties, [(p if rows is None else np.asarray(rows)[p])[c] for p, c in zip(position, counts, strict=True)],
        {i: _base_of(data, int(owners[i]), loss) for i in here if has_base},
        (*methods, *([baseline] if isinstance(loss, _PLAIN) else [])), of_method, of_shared, of_columns,
        input_names(data), loss, data.task, total)


def measure_rows(runs: Sequence[RunPredictions], score: Score) -> RowValues:
    """The value of every test row of one seed with every method.

    The predictions of several folds are put together before the values are computed, so that a metric that is no mean
    over rows is computed once, from all rows of a site.

    If several processes have a part of the samples each, all must call it; each gets the values of all rows.

    Args:
        runs: the predictions of the seed: one run, or one for each fold.
    """
    first = runs[0]
    rows = [np.concatenate([run.rows[i] for run in runs]) for i in range(len(first.parties))]
    sizes = np.array([len(of_party) for of_party in rows])

    def collected(predictions: dict[int, Predictions], values_of: Callable[[list[Predictions]], Values]) -> Values:
        return first.total(_collect(predictions, sizes, values_of))

    sampling, kind = _sampling(score, first.task), label_kind(first.loss)
    values, models = dict[str, Values](), dict[tuple[str, Quantity], Values]()
    columns = dict[tuple[str, int], ColumnSums]()
    classes = labels = None
    of_parties = np.zeros(len(sizes))
    of_parties[list(first.base)] = list(first.base.values())
    base = None if kind == "other" else first.total(np.repeat(of_parties, sizes))
    for label in first.methods:
        predictions = _joined([run.of_method(label) for run in runs])
        values[label] = collected(predictions, partial(_row_values, score=score, loss=first.loss))
        models[label, "loss"] = collected(predictions, partial(_losses, loss=first.loss))
        if labels is None:
            labels = (np.full(sizes.sum(), np.nan) if kind == "other" and sampling == "rows" else
                      collected(predictions, _labels))
            classes = None if sampling == "rows" else labels.astype(np.int64)
        of_shared = [run.of_shared(label) for run in runs]
        shared = [part for part in of_shared if part is not None]
        if len(shared) == len(runs):
            for quantity, of_rows in _shared_quantities(first.loss, kind).items():
                models[label, quantity] = collected(_joined(shared), of_rows)
        for run in runs:
            for i, sums in run.of_columns(label).items():
                key = label, int(first.parties[i])
                columns[key] = columns[key] + sums if key in columns else sums
    return RowValues(np.full(sizes.sum(), first.seed), np.repeat(first.parties, sizes).astype(np.int64),
                     np.concatenate(rows), values, sampling, classes, kind, labels, base, models, columns,
                     first.column_names)


def is_linear(model: Model, data: FederatedData) -> bool:
    """Whether the coefficients of columns are tested: of a linear model with one linear predictor and few columns."""
    return (isinstance(model, LinearModel) and isinstance(model.loss, _PLAIN) and data.is_in_memory
            and model.outputs <= (2 if isinstance(model.loss, CrossEntropy) else 1) and model.features <= MOST_COLUMNS)


def input_names(data: FederatedData) -> tuple[str, ...]:
    """The names of the inputs, which are numbered if they have none."""
    size = int(np.prod(data.input_shape))
    return tuple(data.features) if len(data.features) == size else tuple(f"input {j}" for j in range(size))


def _column_sums(loss: Loss, x: Any, predictions: Predictions, shared: Any) -> ColumnSums:
    weight, kind = np.asarray(shared["weight"], dtype=np.float64), label_kind(loss)
    outcome, predictor = (_predictors([predictions], kind, part) for part in (0, 1))
    return column_sums(_flat(x), outcome, predictor, weight[1] - weight[0] if len(weight) == 2 else weight[0],
                       is_binary=kind != "numbers")


def label_kind(loss: Loss) -> LabelKind:
    """What the labels of a loss are, for the advice."""
    if isinstance(loss, BinaryCrossEntropy):
        return "binary"
    return "classes" if isinstance(loss, CrossEntropy) else "numbers" if isinstance(loss, SquaredError) else "other"


def _base_of(data: FederatedData, party: int, loss: Loss) -> float:
    """The loss of the best constant, by all labels of the party."""
    labels = np.concatenate([data.party(party, split)[1] for split in SPLITS])
    return base_loss(_of_one_number(labels), kind=label_kind(loss))


def _shared_quantities(loss: Loss, kind: LabelKind) -> dict[Quantity, Callable[[list[Predictions]], Values]]:
    """What the advice reads of the shared model's predictions."""
    of_loss: dict[Quantity, Callable[[list[Predictions]], Values]] = {"shared": partial(_losses, loss=loss)}
    return of_loss if kind == "other" else of_loss | {
        "predictor": partial(_predictors, kind=kind, part=1), "outcome": partial(_predictors, kind=kind, part=0)}


def _losses(predictions: list[Predictions], loss: Loss) -> Values:
    return _row_values(predictions, Score("loss", higher_is_better=False), loss)


def _predictors(predictions: list[Predictions], kind: LabelKind, part: int) -> Values:
    """[R] the outcomes (part 0), or the linear predictors (part 1), of ``calibration_slope``; nan without a number."""
    values = []
    for of_party in predictions:
        labels, outputs = np.asarray(of_party.labels), np.asarray(of_party.outputs, dtype=np.float64)
        if kind == "classes" and outputs.shape[-1] == 2:
            pair = labels, outputs[:, 1] - outputs[:, 0]
        elif kind == "classes":
            pair = winning_log_odds(of_party.probabilities, labels)
        else:
            pair = _of_one_number(labels), _of_one_number(outputs)
        values.append(np.asarray(pair[part], dtype=np.float64))
    return np.concatenate(values)


def _of_one_number(values: Any) -> Values:
    """[n] from [n] or [n, 1]; nan for several numbers a row."""
    rows = _flat(values)
    return rows[:, 0] if rows.shape[1] == 1 else np.full(len(rows), np.nan)


def _flat(values: Any) -> Values:
    """[n, p] from [n, ...]; also of no rows, as a small site has in a fold."""
    rows = np.asarray(values, dtype=np.float64)
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


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


def _predictions(result: Result, parties: NDArray[np.integer], data: FederatedData, split: str = _SPLIT, *,
                 is_shared: bool = False) -> dict[int, Predictions]:
    """The predictions of the personal models, or of the shared one, for the samples of this process.

    Returns:
        Position among the parties -> the predictions.
    """
    if is_shared:
        first = np.zeros(len(parties), np.int32)
        shared = tree.stack(result.server_model, 1)
        return {int(positions[p.position]): p.predictions
                for problem, positions in result.parties_view.sampled_parties(parties)
                for p in predictions_of_parties(problem, shared, first[positions], parties[positions], (split,),
                                                data.task)}
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
    """For each party the mean of its training labels, or the shares of the classes, half a row for a missing one."""
    predictions = []
    for k in parties.tolist():
        train, labels = data.party(k)[1], data.party(k, _SPLIT)[1]
        n = len(labels)
        if isinstance(loss, SquaredError):
            mean = np.broadcast_to(np.mean(train, axis=0), labels.shape)
            predictions.append(Predictions(labels, mean, None, mean))
            continue
        counts = np.bincount(train.astype(np.int64), minlength=max(data.outputs, 2))
        share = np.where(counts > 0, counts, 0.5)
        share = share / share.sum()
        outputs = np.log(share) if isinstance(loss, CrossEntropy) else np.log(share[1] / share[0])
        predictions.append(Predictions(labels, np.full(n, np.argmax(share)), np.tile(share, (n, 1)),
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
    """[R] class numbers or numbers; nan for several numbers a row."""
    return np.concatenate([_of_one_number(p.labels) for p in predictions])


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
