"""What the built-in networks spend their time in, arranged for a compiled loop on a CPU, with its own gradient rules.

XLA's convolution is slow inside a loop, its automatic gradients of overlapping slices and of a scan slower still. Here
all heavy work is matrix products: a convolution is one product with the image's patches; where 2x2 max-pooling follows,
one product gives all four places of a square from one patch, so that patches are few. Images lie with the batch in the
last axis, which makes every copy and every elementwise loop run over adjacent numbers.

The rules are made of differentiable operations: second derivatives, and products of the Hessian with a vector as
``jax.jvp`` of a gradient, work; forward mode alone, ``jax.jvp`` of these functions themselves, does not.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from resolvent.xla.compact import apart, one_function

__all__ = ["affine_gradient", "convolve", "convolve_relu_pool", "lstm", "rows_one_by_one"]

_FEW = 32  # samples: for more, one product of matrices is faster
_REGISTERS = 32  # numbers: two of a processor's widest


def convolve(x: Float[Array, "B H W C"], weight: Float[Array, "k k C F"]) -> Float[Array, "B R Q F"]:
    """Valid cross-correlation with stride 1: out[i, j] = sum over a, b of x[i + a, j + b] @ weight[a, b]."""
    x, weight = _alike(x, weight)
    x = jnp.transpose(x, (3, 1, 2, 0))
    return _images(_convolve(1, x, weight)[0], _Patches(1, x.shape, len(weight)))


def convolve_relu_pool(x: Float[Array, "B H W C"], weight: Float[Array, "k k C F"],
                       bias: Float[Array, " F"]) -> Float[Array, "B R Q F"]:
    """max(0, bias + the largest of each 2x2 square of ``convolve(x, weight)``); an odd last row or column is left out.

    Where entries of a square tie, the gradient is the first one's, row by row; at 0 it is 0.
    """
    x, weight, bias = _alike(x, weight, bias)
    x = jnp.transpose(x, (3, 1, 2, 0))
    return _images(_relu_of_largest(_convolve(2, x, weight), bias), _Patches(2, x.shape, len(weight)))


def lstm(x: Float[Array, "T B n"], inputs: Float[Array, "n W4"], state: Float[Array, "W W4"],
         bias: Float[Array, " W4"]) -> Float[Array, "T B W"]:
    """The states h of an LSTM layer with one more in the forget gate's bias.

    i, f, g, o = x inputs + h state + bias; c <- sigmoid(f + 1) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).
    """
    return _lstm(*_alike(x, inputs, state, bias))


def rows_one_by_one(batch: int) -> bool:
    """Whether ``affine_gradient`` is the faster way for so many samples: on a CPU, for few of them."""
    return batch <= _FEW and jax.default_backend() == "cpu"


def affine_gradient(weight: Float[Array, "C F"], bias: Float[Array, " C"], x: Float[Array, "total F"],
                    at: Int[Array, " B"], of_outputs: Callable[[Array], Array]) -> tuple[Array, Array]:
    """The gradient by weight and bias of a function of the outputs weight x[i] + bias, i in ``at``.

    Every sample's row is read where it lies, in a product with one vector and in a sum of outer products that XLA
    merges with the step that follows: no batch is gathered, and no product is too small for its library's call.

    Args:
        weight: [C, F].
        bias: [C].
        x: all samples' rows.
        at: which of them.
        of_outputs: the function's gradient by the outputs, [B, C] -> [B, C].
    """
    rows = [jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for i in at]
    d = of_outputs(jnp.stack([weight @ row for row in rows]) + bias)
    of_weight = [d[b][:, None] * row for b, row in enumerate(rows)]
    return sum(of_weight[1:], of_weight[0]), sum((d[b] for b in range(1, len(rows))), d[0])


def _alike(*arrays: Array) -> list[Array]:
    """All in the dtype that holds each."""
    dtype = jnp.result_type(*arrays)
    return [a.astype(dtype) for a in arrays]


class _Patches:
    """How an image is cut for squares of ``side`` x ``side`` outputs of a convolution with a k x k filter.

    The image is seen as cells of side x side pixels. A square needs ``reach`` x ``reach`` cells; what of them the
    filter does not cover has weight zero.
    """

    def __init__(self, side: int, shape: tuple[int, ...], k: int) -> None:
        self.side, self.k, self.shape = side, k, shape
        depth, height, width, batch = shape
        self.reach = (k - 2) // side + 2 if k > 1 else 1
        self.rows, self.columns = (height - k + 1) // side, (width - k + 1) // side
        self.window = (depth, self.rows, side, self.columns, side, batch)
        self.cells = (depth, self.rows + self.reach - 1, side, self.columns + self.reach - 1, side, batch)

    def cut(self, x: Array) -> Float[Array, "K M"]:
        """The patches of all squares, [cells, side, side, depth; rows, columns, batch]."""
        cells = _fitted(x, self.cells[1] * self.side, self.cells[3] * self.side).reshape(self.cells)

        def seen(cells: Array) -> Array:
            corners = [(a, b) for a in range(self.reach) for b in range(self.reach)]
            parts = [cells[:, a:a + self.rows, :, b:b + self.columns] for a, b in corners]
            return jnp.stack([part.transpose(2, 4, 0, 1, 3, 5) for part in parts])

        patches: Array = apart(seen)(cells)
        return patches.reshape(-1, self.rows * self.columns * self.shape[3])

    def overlaid(self, patches: Float[Array, "K M"]) -> Array:
        """The transpose of ``cut``: every patch added where it was cut from."""
        depth, rows, side, columns, _, batch = self.window
        parts = patches.reshape(-1, side, side, depth, rows, columns, batch)

        def add(i: Array, cells: Array) -> Array:
            here = jax.lax.dynamic_slice(cells, self._place(i), self.window)
            return jax.lax.dynamic_update_slice(cells, here + parts[i].transpose(2, 3, 0, 4, 1, 5), self._place(i))

        # A loop, for XLA would merge updates that stand side by side into whatever reads them, and do them many times.
        cells = jax.lax.fori_loop(0, self.reach**2, add, jnp.zeros(self.cells, patches.dtype))
        return _fitted(cells.reshape(depth, self.cells[1] * side, self.cells[3] * side, batch), *self.shape[1:3])

    def spread(self, weight: Float[Array, "k k C F"]) -> Float[Array, "K SF"]:
        """The matrix that makes a square's outputs [side, side, F] of its patch: the filter, once for each place."""
        depth, filters = weight.shape[2:]
        flat = jnp.concatenate([weight.reshape(-1, filters), jnp.zeros((1, filters), weight.dtype)])
        taken = np.minimum(self._table()[:, None] * depth + np.arange(depth)[:, None], self.k**2 * depth)
        return flat[taken].reshape(-1, self.side**2 * filters)

    def gathered(self, matrix: Float[Array, "K SF"], filters: int) -> Float[Array, "k k C F"]:
        """The transpose of ``spread``."""
        parts = matrix.reshape(-1, self.shape[0], self.side**2, filters)
        table = self._table()
        found = [parts[np.argsort(table[:, s], kind="stable")[:self.k**2], :, s] for s in range(self.side**2)]
        return sum(found[1:], start=found[0]).reshape(self.k, self.k, self.shape[0], filters)

    def _place(self, i: Int[Array, ""]) -> tuple[Any, ...]:
        return (0, i // self.reach, 0, i % self.reach, 0, 0)

    def _table(self) -> NDArray[np.int64]:
        """[pixels of a patch, places of a square]: which weight leads from one to the other; k^2 for none."""
        side, pixel, place = self.side, np.arange(self.reach * self.side), np.arange(self.side)
        apart = pixel[:, None] - place  # the same for rows and columns
        fits = (apart >= 0) & (apart < self.k)
        weight = np.where(fits[:, None, :, None] & fits[None, :, None, :],
                          apart[:, None, :, None] * self.k + apart[None, :, None, :], self.k**2)
        cells = weight.reshape(self.reach, side, self.reach, side, side, side).swapaxes(1, 2)
        return cells.reshape((self.reach * side)**2, side**2)


def _images(x: Float[Array, "F M"], how: _Patches) -> Float[Array, "B R Q F"]:
    """The numbers of all squares, as images with the batch first."""
    return jnp.transpose(x.reshape(-1, how.rows, how.columns, how.shape[3]), (3, 1, 2, 0))


def _fitted(x: Float[Array, "C H W B"], height: int, width: int) -> Array:
    """Cut off, or filled up with zeros."""
    x = x[:, :height, :width]
    return jnp.pad(x, ((0, 0), (0, height - x.shape[1]), (0, width - x.shape[2]), (0, 0)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(side: int, x: Float[Array, "C H W B"], weight: Float[Array, "k k C F"]) -> Float[Array, "S F M"]:
    """The convolution's outputs by their places in squares of ``side`` x ``side``, S = side^2; M squares in all."""
    return _convolve_forward(side, x, weight)[0]


def _convolve_forward(side: int, x: Array, weight: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    how = _Patches(side, x.shape, len(weight))
    patches = how.cut(x)
    outputs = how.spread(weight).T @ patches
    return outputs.reshape(side**2, -1, patches.shape[1]), (x, weight, patches)


def _convolve_backward(side: int, kept: tuple[Array, Array, Array], g: Array) -> tuple[Array, Array]:
    x, weight, patches = kept
    how = _Patches(side, x.shape, len(weight))
    g = g.reshape(-1, patches.shape[1])
    return how.overlaid(how.spread(weight) @ g), how.gathered(patches @ g.T, weight.shape[3])


_convolve.defvjp(_convolve_forward, _convolve_backward)


@jax.custom_vjp
def _relu_of_largest(z: Float[Array, "S F M"], bias: Float[Array, " F"]) -> Float[Array, "F M"]:
    """max(0, bias + the largest of S).

    Images would be the same numbers along more axes, with which XLA's loops take twice as long.
    """
    return _relu_of_largest_forward(z, bias)[0]


def _relu_of_largest_forward(z: Array, bias: Array) -> tuple[Array, Array]:
    found: tuple[Array, Array] = apart(_pooled)(z, bias)
    return found


def _pooled(z: Array, bias: Array) -> tuple[Array, Array]:
    largest = reduce(jnp.maximum, z)  # one by one, which XLA merges with what follows
    value = largest + bias[:, None]
    which = jnp.full(largest.shape, len(z) - 1, jnp.int8)
    for s in reversed(range(len(z) - 1)):
        which = jnp.where(z[s] == largest, jnp.int8(s), which)
    return jax.nn.relu(value), jnp.where(value > 0, which, jnp.int8(len(z)))


def _relu_of_largest_backward(which: Array, g: Array) -> tuple[Array, Array]:
    return apart(_unpooled)(which, g), jnp.sum(jnp.where(which < 4, g, 0), axis=1)


def _unpooled(which: Array, g: Array) -> Array:
    places = jnp.arange(4, dtype=jnp.int8)[:, None]
    return jnp.where(which.reshape(-1) == places, g.reshape(-1), 0).reshape(4, *g.shape)


_relu_of_largest.defvjp(_relu_of_largest_forward, _relu_of_largest_backward)


@jax.custom_vjp
def _lstm(x: Array, inputs: Array, state: Array, bias: Array) -> Array:
    return _lstm_forward(x, inputs, state, bias)[0]


def _lstm_forward(x: Array, inputs: Array, state: Array, bias: Array) -> tuple[Array, tuple[Array, ...]]:
    """By sigmoid(z) = (1 + tanh(z/2)) / 2 one tanh serves all gates; the inputs' part is done for all times at once."""
    times, batch, n = x.shape
    width = len(state)
    half = jnp.repeat(jnp.array([0.5, 0.5, 1, 0.5], x.dtype), width)
    forget = jnp.repeat(jnp.array([0, 1, 0, 0], x.dtype), width)
    recurrent = half * state
    driven = x.reshape(-1, n) @ (half * inputs) + half * (bias + forget)

    def step(carry: tuple[Array, Array], now: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c = carry
        h, c, slopes = one_function(_gates)(now, h @ recurrent, c)
        return (h, c), (h, slopes)

    rest = jnp.zeros((batch, width), x.dtype)
    _, (h, slopes) = jax.lax.scan(step, (rest, rest), driven.reshape(times, batch, -1))
    return h, (x, inputs, state, h, slopes)


def _gates(driven: Array, from_state: Array, c: Array) -> tuple[Array, Array, Array]:
    """The next h and c, and what the way back needs of all this: six factors [B, 6 W], cheapest made here.

    They are by how much c and h move with each gate's sum (c with those of i, f and g; h with that of o), h with c, and
    c with the c before it.
    """
    i, f, g, o = jnp.split(jnp.tanh(driven + from_state), 4, axis=-1)
    new = ((1 + f) * c + (1 + i) * g) / 2
    squashed = jnp.tanh(new)
    slopes = (g * (1 - i * i) / 2, c * (1 - f * f) / 2, (1 + i) * (1 - g * g), squashed * (1 - o * o) / 4,
              (1 + o) * (1 - squashed * squashed) / 4, 1 + f)
    return (1 + o) * squashed / 2, new, jnp.concatenate(slopes, axis=-1)


def _gates_backward(dh: Array, dc: Array, arrived: Array, slopes: Array) -> tuple[Array, Array]:
    """The gradients of the gates' sums and of the c before; of ``dh`` the first W columns count."""
    of_i, of_f, of_g, of_o, of_c, before = jnp.split(slopes, 6, axis=-1)
    dh = dh[:, :arrived.shape[1]] + arrived
    dc = dc / 2 + dh * of_c
    return jnp.concatenate([dc * of_i, dc * of_f, dc * of_g, dh * of_o], axis=-1), dc * before


def _lstm_backward(kept: tuple[Array, ...], dh: Array) -> tuple[Array, ...]:
    """Back through time for the gates' gradients alone; then one product gives the gradient of all weights."""
    x, inputs, state, h, slopes = kept
    times, batch, width = h.shape
    rest = jnp.zeros((1, batch, width), h.dtype)
    # A product whose columns fill whole registers takes less time, those that nobody reads included.
    back = jnp.pad(state.T, ((0, 0), (0, -width % _REGISTERS if width > _REGISTERS else 0)))

    def step(carry: tuple[Array, Array], now: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        dz, dc = one_function(_gates_backward)(*carry, *now)
        return (dz @ back, dc), dz

    nothing = jnp.zeros((batch, back.shape[1]), h.dtype), rest[0]
    dz = jax.lax.scan(step, nothing, (dh, slopes), reverse=True)[1].reshape(times * batch, -1)
    ones = jnp.ones((times, batch, 1), h.dtype)
    before = jnp.concatenate([x, jnp.concatenate([rest, h[:-1]]), ones], axis=-1).reshape(times * batch, -1)
    of_weights = jax.lax.dot_general(before, dz, (((0,), (0,)), ((), ())))
    of_inputs, of_state, of_bias = jnp.split(of_weights, [len(inputs), len(inputs) + width])
    return (dz @ inputs.T).reshape(x.shape), of_inputs, of_state, of_bias[0]


_lstm.defvjp(_lstm_forward, _lstm_backward)
