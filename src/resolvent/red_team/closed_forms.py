"""Rows from an update in closed form, without a search.

For a dense layer z = W x + b every row i contributes its own error d_i to both gradients:

.. code-block:: text

    dW[j] = sum_i d_i[j] x_i        db[j] = sum_i d_i[j]

So the update of a unit j divided by that of its bias is a mean of the rows that reach it, with the weights d_i[j]. It
is the row itself if only one row reaches the unit: with one row in an update, and for units that one row activates. The
difference of two successive updates with small steps is the row that a unit of a ReLU network has begun or ceased to
let through, because the parts of all others hardly change.

At a model whose predictions are equal for all rows and classes, softmax has d_i[j] = 1/C - [y_i = j]. With C classes, B
rows and the learning rate eta, one step gives the number n_j of rows of each class and, if a class is absent from the
step, the sum of the rows of each class:

.. code-block:: text

    n_j = B (db[j]/eta + 1/C)        S = -C B dW[a]/eta  for an absent class a        s_j = B dW[j]/eta + S/C

A class with one row in the step gives this row. Here dW and db are the update of the model, so that their sign is that
of a step against the gradient.

References:
    Geiping et al.: Inverting Gradients, NeurIPS 2020, Proposition 3.1; Phong et al.: Privacy-Preserving Deep Learning
    via Additively Homomorphic Encryption, 2018, section 3; Zhao et al.: iDLG, 2020, for labels.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

_ROUNDING = 1e-3  # of a number of rows


class DenseUpdate(NamedTuple):
    """The update of a dense layer that reads the inputs.

    Attributes:
        weight: [units, d]
        bias: [units]
    """

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]


def dense_updates(update: PyTree[Any], inputs: int) -> list[DenseUpdate]:
    """The layers in a tree that have a weight for each input, and a bias.

    A layer is a matrix with ``inputs`` rows or columns, and a vector with its other dimension under the same parent.

    Args:
        update: the difference of two models, a gradient, or a tree that has them.

    Example:
        >>> tree = {"weight": np.ones((3, 4)), "bias": np.ones(3)}
        >>> [layer.weight.shape for layer in dense_updates(tree, 4)]
        [(3, 4)]
    """
    leaves = [(path[:-1], np.asarray(leaf, np.float64)) for path, leaf in jax.tree.leaves_with_path(update)]
    layers = []
    for parent, weight in leaves:
        if weight.ndim != 2:
            continue
        for matrix in [m for m in (weight, weight.T) if m.shape[1] == inputs]:
            layers += [DenseUpdate(matrix, bias) for other, bias in leaves
                       if other == parent and bias.shape == matrix.shape[:1]]
    return layers


def rows_of_units(layer: DenseUpdate) -> NDArray[np.float64]:
    """[G, d] the update of each unit divided by that of its bias, for units whose bias has changed.

    Example:
        >>> row, error = np.array([1.0, -2.0]), np.array([0.3, -0.3])
        >>> rows_of_units(DenseUpdate(np.outer(error, row), error)).tolist()
        [[1.0, -2.0], [1.0, -2.0]]
    """
    has_changed = layer.bias != 0
    quotients: NDArray[np.float64] = layer.weight[has_changed] / layer.bias[has_changed, None]
    return quotients


def rows_of_classes(layer: DenseUpdate, rate: float, batch: int) -> NDArray[np.float64]:
    """[G, d] the rows whose class is that of no other row in the step; none if no class is absent from it.

    Args:
        layer: the update of a softmax layer in one step from a model with equal predictions.
        rate: eta, the learning rate.
    """
    classes = len(layer.bias)
    counts = batch * (layer.bias / rate + 1 / classes)
    if classes < 2 or np.abs(counts - counts.round()).max() > _ROUNDING or not (counts.round() == 0).any():
        return np.zeros((0, layer.weight.shape[1]))
    absent = counts.round() == 0
    total = -classes * batch * layer.weight[absent].mean(axis=0) / rate
    of_classes: NDArray[np.float64] = batch * layer.weight / rate + total / classes
    of_single_rows: NDArray[np.float64] = of_classes[counts.round() == 1]
    return of_single_rows
