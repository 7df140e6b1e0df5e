"""What a model rests on: coefficients in the units of the table, and permutation importance with intervals."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resolvent.data.encoded_rows import Encoding
from resolvent.data.images_text.array_encoding import ArrayEncoding
from resolvent.errors import InputError
from resolvent.predict.fitted import Fitted
from resolvent.predict.intervals import Interval
from resolvent.problem.models.model import LinearModel
from resolvent.tables.encoding import TableEncoding

if TYPE_CHECKING:
    import pandas as pd

_SEED = 20_240_306
_MAX_PARTNERS = 50  # rows whose value each row gets in turn
_MIN_PARTNERS = 4
_MAX_EVALUATIONS = 500_000  # rows that are predicted for one column, unless that would be fewer than 4 partners
_MAX_NUMBERS = 4_000_000  # inputs of one call
_MAX_INPUTS = 200  # inputs of an array that are explained one by one

Values = NDArray[np.float64]


def blocks_of_columns(encoding: Encoding) -> dict[str, NDArray[np.intp]]:
    """Column of the table -> the positions of its inputs, which are exchanged together.

    A number has one, a category one per level, a date several, and with them go their marks of missing values. For
    arrays of one axis every input is a column, with its name or its number.
    """
    if isinstance(encoding, TableEncoding):
        position = {name: i for i, name in enumerate(encoding.features)}
        marks = {name: [position[f"{name} missing"]] for name in encoding.marked}
        date_of = {part: date.name for date in encoding.dates for part in date.columns}
        blocks: dict[str, list[int]] = {}
        for column in encoding.columns:
            inputs = [position[name] for name in column.features] + marks.get(column.name, [])
            blocks.setdefault(date_of.get(column.name, column.name), []).extend(inputs)
        return {name: np.array(inputs, np.intp) for name, inputs in blocks.items()}
    assert isinstance(encoding, ArrayEncoding)
    if len(encoding.shape) != 1 or encoding.tokens or encoding.pixels is not None or encoding.shape[0] > _MAX_INPUTS:
        raise InputError("the model has images, texts or more than 200 numbers as inputs, of which no single input can "
                         "be explained: this is for the columns of a table")
    names = encoding.names or tuple(f"input {i}" for i in range(encoding.shape[0]))
    return {name: np.array([i]) for i, name in enumerate(names)}


def coefficients(fitted: Fitted) -> "pd.DataFrame | None":
    """The coefficients of a linear or logistic model in the units of the table; None for another model.

    With w the weight of an input (x - m) / s, the coefficient is w / s, and the intercept is b - sum w m / s. So
    ``intercept + rows @ coefficients`` are the outputs of the model (without calibration) for rows of the table, in
    which a missing number is imputed and a category has 0/1 for each level.

    Returns:
        Index: the inputs, as ``encoding.features``, and ``intercept``. A column for each output: ``prediction`` for a
        regression; the logit of the second class for two classes; otherwise the logit of each class.

    Example:
        >>> from resolvent.predict.importance import coefficients
        >>> data = rv.datasets.synthetic(parties=2, features=3)
        >>> result = rv.simulate(rv.fedavg(rv.SGD(0.1)), rv.models.linear(3), data, rounds=2, progress=False)
        >>> coefficients(result.fitted()).shape
        (4, 1)
    """
    import pandas as pd

    if not isinstance(fitted.model, LinearModel):
        return None
    params: Any = fitted.params
    weight, bias = (np.asarray(params[name], np.float64) for name in ("weight", "bias"))
    encoding = fitted.encoding
    mean, deviation = np.zeros(weight.shape[1]), np.ones(weight.shape[1])
    if isinstance(encoding, TableEncoding):
        mean[:len(encoding.numbers)] = [column.mean for column in encoding.numbers]
        deviation[:len(encoding.numbers)] = [column.deviation for column in encoding.numbers]
    scaled = weight / deviation
    names = encoding.features or tuple(f"input {i}" for i in range(weight.shape[1]))
    classes = fitted.classes
    outputs = ["prediction"] if not classes else list(classes) if len(weight) == len(classes) else [classes[-1]]
    return pd.DataFrame(np.vstack([scaled.T, bias - scaled @ mean]), index=[*names, "intercept"], columns=outputs)


def importance_values(losses: Callable[[NDArray[Any]], Values], x: NDArray[Any],
                      blocks: Mapping[str, NDArray[np.intp]], *, seed: int = 0,
                      progress: Callable[[], None] | None = None) -> dict[str, Values]:
    """Values [n] of the rows whose mean is the permutation importance of a column.

    The importance of a column is the mean loss if the column has the value of another row, minus the mean loss: with
    h(i, j) = loss of row i with the column of row j - loss of row i, the mean of h over pairs of different rows. It is
    paired, because both losses are of the same row. Row i counts in its own predictions and in those of the rows that
    get its value, so its value is

    .. code-block:: text

        v_i = mean_j h(i, j) + mean_j h(j, i) - mean h

    whose mean is the importance, and whose variance over n is that of the importance (Hoeffding's projection), so that
    their mean has Student's interval. Every row has the same number of partners j: all others, or at most 50.

    Args:
        losses: function from inputs [m, ...] to the loss of each row; row i of the inputs is row ``i % n`` of ``x``.
        x: [n, features] inputs, n at least 2.
        blocks: column -> the positions of its inputs, which are exchanged together.
        seed: seed of the partners.
        progress: a function that is called after each column.

    References:
        Breiman: Random Forests, Machine Learning 2001; Fisher, Rudin, Dominici: All Models are Wrong, but Many are
        Useful, JMLR 2019, (3.2); Hoeffding: A Class of Statistics with Asymptotically Normal Distribution, 1948.
    """
    n = len(x)
    rng, base = np.random.default_rng([_SEED, seed]), losses(x)
    order = rng.permutation(n)
    position = np.argsort(order)
    number = min(n - 1, max(_MIN_PARTNERS, min(_MAX_PARTNERS, _MAX_EVALUATIONS // n)))
    at_once = max(1, _MAX_NUMBERS // x.size)
    shifts = rng.choice(np.arange(1, n), number, replace=False)
    values = {}
    for name, block in blocks.items():
        received, passed_on = np.zeros(n), np.zeros(n)
        for part in np.array_split(shifts, -(-number // at_once)):
            donors = order[(position + part[:, None]) % n]  # [partners, n]
            changed = np.tile(x, (len(part), 1))
            changed[:, block] = x[donors.ravel()][:, block]
            differences = losses(changed).reshape(len(part), n) - base
            received += differences.sum(axis=0)
            passed_on += np.bincount(donors.ravel(), differences.ravel(), minlength=n)
        values[name] = (received + passed_on - received.mean()) / number
        if progress is not None:
            progress()
    return values


def differing_sites(intervals: Sequence[Interval], comparisons: int) -> list[int]:
    """For each site 1 if its value is above the mean of the other sites, -1 if it is below, 0 if this is not certain.

    The difference to the mean of the others is certain if it is larger than its standard deviation times the quantile
    of the standard normal distribution for the level 0.95 of all comparisons together (Bonferroni). Standard deviations
    are those of the intervals.

    Args:
        intervals: the interval of each site; nan if it is not known.
        comparisons: number of comparisons.
    """
    from scipy.special import ndtri

    value, low, high = np.array(intervals, float).T
    is_known = np.isfinite(low) & np.isfinite(high)
    number = int(is_known.sum())
    if number < 2:
        return [0] * len(intervals)
    variance = np.where(is_known, ((high - low) / (2 * ndtri(0.975))) ** 2, 0)
    value = np.where(is_known, value, 0)
    difference = value - (value.sum() - value) / (number - 1)
    deviation = np.sqrt(variance + (variance.sum() - variance) / (number - 1) ** 2)
    certain = is_known & (np.abs(difference) > ndtri(1 - 0.025 / comparisons) * deviation)
    return [int(sign) for sign in np.where(certain, np.sign(difference), 0)]
