"""The most expensive operations of the built-in models, arranged for a compiled loop on a CPU, with gradient rules.

XLA's convolution is slow inside a loop, and its automatic gradients of overlapping slices and of a scan are slower
still. Here all expensive work is in matrix products. A convolution is one product of the filter with the image's
patches. Where 2x2 max-pooling follows, one product gives all four outputs of a pooling window from one patch, so that
there are fewer patches. Images have the batch in their last axis, so that copies and elementwise loops run over
adjacent numbers.

The gradient rules consist of differentiable operations: second derivatives, and Hessian-vector products as ``jax.jvp``
of a gradient, work. Forward mode alone, ``jax.jvp`` of these functions themselves, does not.
"""

from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from xla_cpu_rewrites.small_call import no_inline, small_call

_REGISTER_NUMBERS = 32  # float32 numbers in two of the widest vector registers


def convolve(x: Float[Array, "B H W C"], weight: Float[Array, "k k C F"]) -> Float[Array, "B R Q F"]:
    """Valid cross-correlation with stride 1: out[i, j] = sum over a, b of x[i + a, j + b] @ weight[a, b]."""
    x, weight = _promote(x, weight)
    x = jnp.transpose(x, (3, 1, 2, 0))
    return _Patches(1, x.shape, len(weight)).images(_convolve(1, x, weight)[0])


def convolve_relu_pool(x: Float[Array, "B H W C"], weight: Float[Array, "k k C F"],
                       bias: Float[Array, " F"]) -> Float[Array, "B R Q F"]:
    """ReLU of 2x2 max-pooling of ``convolve(x, weight) + bias``; an odd last row or column is left out.

    Where entries of a pooling window tie, the first one, row by row, gets the gradient. At 0 the gradient is 0.
    """
    x, weight, bias = _promote(x, weight, bias)
    x = jnp.transpose(x, (3, 1, 2, 0))
    return _Patches(2, x.shape, len(weight)).images(_max_relu(_convolve(2, x, weight), bias))


def lstm(x: Float[Array, "T B n"], inputs: Float[Array, "n W4"], state: Float[Array, "W W4"],
         bias: Float[Array, " W4"]) -> Float[Array, "T B W"]:
    """The states h of an LSTM layer whose forget gate has 1 added to its bias.

    i, f, g, o = x inputs + h state + bias; c <- sigmoid(f + 1) c + sigmoid(i) tanh(g); h = sigmoid(o) tanh(c).
    """
    return _lstm(*_promote(x, inputs, state, bias))


def _promote(*arrays: Array) -> list[Array]:
    """The arrays in their common dtype."""
    dtype = jnp.result_type(*arrays)
    return [a.astype(dtype) for a in arrays]


class _Patches:
    """The patches of an image, from which a matrix product gives ``side`` x ``side`` adjacent outputs of a convolution.

    The image is divided into cells of ``side`` x ``side`` pixels. A square of outputs needs ``reach`` x ``reach``
    cells. Pixels of these cells that the k x k filter does not cover have weight zero.
    """

    def __init__(self, side: int, shape: tuple[int, ...], k: int) -> None:
        self.side, self.k, self.shape = side, k, shape
        depth, height, width, batch = shape
        self.reach = (k - 2) // side + 2 if k > 1 else 1
        self.rows, self.columns = (height - k + 1) // side, (width - k + 1) // side
        self.window = (depth, self.rows, side, self.columns, side, batch)
        self.cells = (depth, self.rows + self.reach - 1, side, self.columns + self.reach - 1, side, batch)

    def extract(self, x: Array) -> Float[Array, "K M"]:
        """The patches of all squares, [cells, side, side, depth; rows, columns, batch]."""
        cells = _resize(x, self.cells[1] * self.side, self.cells[3] * self.side).reshape(self.cells)

        def gather(cells: Array) -> Array:
            corners = [(a, b) for a in range(self.reach) for b in range(self.reach)]
            parts = [cells[:, a:a + self.rows, :, b:b + self.columns] for a, b in corners]
            return jnp.stack([part.transpose(2, 4, 0, 1, 3, 5) for part in parts])

        patches: Array = no_inline(gather)(cells)
        return patches.reshape(-1, self.rows * self.columns * self.shape[3])

    def overlap_add(self, patches: Float[Array, "K M"]) -> Array:
        """The transpose of ``extract``: every patch is added at its position in the image."""
        depth, rows, side, columns, _, batch = self.window
        parts = patches.reshape(-1, side, side, depth, rows, columns, batch)

        def add(i: Array, cells: Array) -> Array:
            window = jax.lax.dynamic_slice(cells, self._corner(i), self.window)
            return jax.lax.dynamic_update_slice(cells, window + parts[i].transpose(2, 3, 0, 4, 1, 5), self._corner(i))

        # A loop, because XLA fuses adjacent updates with each of their readers and computes them again for each.
        cells = jax.lax.fori_loop(0, self.reach**2, add, jnp.zeros(self.cells, patches.dtype))
        return _resize(cells.reshape(depth, self.cells[1] * side, self.cells[3] * side, batch), *self.shape[1:3])

    def filter_matrix(self, weight: Float[Array, "k k C F"]) -> Float[Array, "K SF"]:
        """The matrix from a patch to its outputs [side, side, F]: the filter, once for each output position."""
        depth, filters = weight.shape[2:]
        flat = jnp.concatenate([weight.reshape(-1, filters), jnp.zeros((1, filters), weight.dtype)])
        rows = np.minimum(self._weight_index()[:, None] * depth + np.arange(depth)[:, None], self.k**2 * depth)
        return flat[rows].reshape(-1, self.side**2 * filters)

    def filter_gradient(self, matrix: Float[Array, "K SF"], filters: int) -> Float[Array, "k k C F"]:
        """The transpose of ``filter_matrix``."""
        parts = matrix.reshape(-1, self.shape[0], self.side**2, filters)
        index = self._weight_index()
        gradients = [parts[np.argsort(index[:, s], kind="stable")[:self.k**2], :, s] for s in range(self.side**2)]
        return sum(gradients[1:], start=gradients[0]).reshape(self.k, self.k, self.shape[0], filters)

    def images(self, outputs: Float[Array, "F M"]) -> Float[Array, "B R Q F"]:
        """The outputs of all squares as images with the batch in the first axis."""
        return jnp.transpose(outputs.reshape(-1, self.rows, self.columns, self.shape[3]), (3, 1, 2, 0))

    def _corner(self, i: Int[Array, ""]) -> tuple[Any, ...]:
        return (0, i // self.reach, 0, i % self.reach, 0, 0)

    def _weight_index(self) -> NDArray[np.int64]:
        """[pixels of a patch, outputs of a square]: the filter's weight between them; k^2 if there is no weight."""
        side, pixel, output = self.side, np.arange(self.reach * self.side), np.arange(self.side)
        offset = pixel[:, None] - output  # the same for rows and columns
        fits = (offset >= 0) & (offset < self.k)
        weight = np.where(fits[:, None, :, None] & fits[None, :, None, :],
                          offset[:, None, :, None] * self.k + offset[None, :, None, :], self.k**2)
        cells = weight.reshape(self.reach, side, self.reach, side, side, side).swapaxes(1, 2)
        return cells.reshape((self.reach * side)**2, side**2)


def _resize(x: Float[Array, "C H W B"], height: int, width: int) -> Array:
    """Crop, or pad with zeros."""
    x = x[:, :height, :width]
    return jnp.pad(x, ((0, 0), (0, height - x.shape[1]), (0, width - x.shape[2]), (0, 0)))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(side: int, x: Float[Array, "C H W B"], weight: Float[Array, "k k C F"]) -> Float[Array, "S F M"]:
    """The convolution's outputs by position in their square of ``side`` x ``side``, S = side^2; M squares in all."""
    return _convolve_forward(side, x, weight)[0]


def _convolve_forward(side: int, x: Array, weight: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    geometry = _Patches(side, x.shape, len(weight))
    patches = geometry.extract(x)
    outputs = geometry.filter_matrix(weight).T @ patches
    return outputs.reshape(side**2, -1, patches.shape[1]), (x, weight, patches)


def _convolve_backward(side: int, residuals: tuple[Array, Array, Array], g: Array) -> tuple[Array, Array]:
    x, weight, patches = residuals
    geometry = _Patches(side, x.shape, len(weight))
    g = g.reshape(-1, patches.shape[1])
    return (geometry.overlap_add(geometry.filter_matrix(weight) @ g),
            geometry.filter_gradient(patches @ g.T, weight.shape[3]))


_convolve.defvjp(_convolve_forward, _convolve_backward)


@jax.custom_vjp
def _max_relu(z: Float[Array, "S F M"], bias: Float[Array, " F"]) -> Float[Array, "F M"]:
    """max(0, bias + max over S of z).

    The arrays are not shaped as images: with more axes XLA's loops take twice as long.
    """
    return _max_relu_forward(z, bias)[0]


def _max_relu_forward(z: Array, bias: Array) -> tuple[Array, Array]:
    output_and_winner: tuple[Array, Array] = no_inline(_pool)(z, bias)
    return output_and_winner


def _pool(z: Array, bias: Array) -> tuple[Array, Array]:
    """The output, and the position in S that gets its gradient; S where none does."""
    largest = reduce(jnp.maximum, z)  # not jnp.max: XLA fuses these with what follows
    value = largest + bias[:, None]
    winner = jnp.full(largest.shape, len(z) - 1, jnp.int8)
    for s in reversed(range(len(z) - 1)):
        winner = jnp.where(z[s] == largest, jnp.int8(s), winner)
    return jax.nn.relu(value), jnp.where(value > 0, winner, jnp.int8(len(z)))


def _max_relu_backward(winner: Array, g: Array) -> tuple[Array, Array]:
    return no_inline(_unpool)(winner, g), jnp.sum(jnp.where(winner < 4, g, 0), axis=1)


def _unpool(winner: Array, g: Array) -> Array:
    positions = jnp.arange(4, dtype=jnp.int8)[:, None]
    return jnp.where(winner.reshape(-1) == positions, g.reshape(-1), 0).reshape(4, *g.shape)


_max_relu.defvjp(_max_relu_forward, _max_relu_backward)


@jax.custom_vjp
def _lstm(x: Array, inputs: Array, state: Array, bias: Array) -> Array:
    return _lstm_forward(x, inputs, state, bias)[0]


def _lstm_forward(x: Array, inputs: Array, state: Array, bias: Array) -> tuple[Array, tuple[Array, ...]]:
    """The states, with one tanh for all gates (sigmoid(z) = (1 + tanh(z/2)) / 2) and one product for all inputs."""
    times, batch, n = x.shape
    width = len(state)
    half = jnp.repeat(jnp.array([0.5, 0.5, 1, 0.5], x.dtype), width)
    forget = jnp.repeat(jnp.array([0, 1, 0, 0], x.dtype), width)
    recurrent = half * state
    input_sums = x.reshape(-1, n) @ (half * inputs) + half * (bias + forget)

    def step(carry: tuple[Array, Array], input_sum: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c = carry
        h, c, slopes = small_call(_gates)(input_sum, h @ recurrent, c)
        return (h, c), (h, slopes)

    zeros = jnp.zeros((batch, width), x.dtype)
    _, (h, slopes) = jax.lax.scan(step, (zeros, zeros), input_sums.reshape(times, batch, -1))
    return h, (x, inputs, state, h, slopes)


def _gates(input_sum: Array, state_sum: Array, c: Array) -> tuple[Array, Array, Array]:
    """The next h and c, and the derivatives that the backward pass needs, [B, 6 W], which are cheapest to compute here.

    They are the derivatives of c by the sums of i, f and g, of h by the sum of o, of h by c, and of c by the previous
    c.
    """
    i, f, g, o = jnp.split(jnp.tanh(input_sum + state_sum), 4, axis=-1)
    new = ((1 + f) * c + (1 + i) * g) / 2
    squashed = jnp.tanh(new)
    slopes = (g * (1 - i * i) / 2, c * (1 - f * f) / 2, (1 + i) * (1 - g * g), squashed * (1 - o * o) / 4,
              (1 + o) * (1 - squashed * squashed) / 4, 1 + f)
    return (1 + o) * squashed / 2, new, jnp.concatenate(slopes, axis=-1)


def _gates_backward(dh: Array, dc: Array, dh_output: Array, slopes: Array) -> tuple[Array, Array]:
    """The gradients by the gates' sums and by the previous c; only the first W columns of ``dh`` count."""
    by_i, by_f, by_g, by_o, by_c, by_previous = jnp.split(slopes, 6, axis=-1)
    dh = dh[:, :dh_output.shape[1]] + dh_output
    dc = dc / 2 + dh * by_c
    return jnp.concatenate([dc * by_i, dc * by_f, dc * by_g, dh * by_o], axis=-1), dc * by_previous


def _lstm_backward(residuals: tuple[Array, ...], dh: Array) -> tuple[Array, ...]:
    """Backward through time for the gradients by the gates' sums; then one product gives those by all weights."""
    x, inputs, state, h, slopes = residuals
    times, batch, width = h.shape
    zeros = jnp.zeros((1, batch, width), h.dtype)
    # Zero columns fill the last vector register: the product is then faster, although it has more columns.
    back = jnp.pad(state.T, ((0, 0), (0, -width % _REGISTER_NUMBERS if width > _REGISTER_NUMBERS else 0)))

    def step(carry: tuple[Array, Array], at_time: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        dz, dc = small_call(_gates_backward)(*carry, *at_time)
        return (dz @ back, dc), dz

    first = jnp.zeros((batch, back.shape[1]), h.dtype), zeros[0]
    dz = jax.lax.scan(step, first, (dh, slopes), reverse=True)[1].reshape(times * batch, -1)
    ones = jnp.ones((times, batch, 1), h.dtype)
    left = jnp.concatenate([x, jnp.concatenate([zeros, h[:-1]]), ones], axis=-1).reshape(times * batch, -1)
    by_weights = jax.lax.dot_general(left, dz, (((0,), (0,)), ((), ())))
    by_inputs, by_state, by_bias = jnp.split(by_weights, [len(inputs), len(inputs) + width])
    return (dz @ inputs.T).reshape(x.shape), by_inputs, by_state, by_bias[0]


_lstm.defvjp(_lstm_forward, _lstm_backward)
