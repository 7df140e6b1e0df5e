"""Every form of a convolution, on shapes for which it is chosen, against XLA's own result in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from xla_cpu_rewrites import rewrite
from xla_cpu_rewrites.convolutions.geometry import NUMBERS, Convolution
from xla_cpu_rewrites.convolutions.rule import FORMS

# Name of a form -> shapes of lhs [batch, *spatial, features] and rhs [*spatial, features / groups, filters], and what
# differs from a convolution with stride 1, without padding, dilation and groups. A new form needs an example.
EXAMPLES = {
    "few_positions": [((5, 4, 3, 50), (9, 8, 50, 3), {"lhs_dilation": (2, 3), "padding": ((1, 2), (-1, 2))}),
                      ((5, 4, 3, 2), (4, 3, 2, 3), {})],
    "phases": [((2, 4, 5, 5, 3), (3, 2, 2, 3, 4), {"lhs_dilation": (2, 2, 1), "padding": ((2, 1), (0, 0), (1, 1))}),
               ((2, 3, 4, 4, 2), (2, 2, 2, 2, 3), {"lhs_dilation": (3, 1, 1), "padding": ((0, 2), (0, 0), (0, 0))}),
               ((2, 5, 4, 3), (3, 4, 3, 4), {"lhs_dilation": (2, 3), "padding": ((2, 0), (-1, 3))}),
               ((2, 5, 4, 6), (3, 5, 3, 4), {"lhs_dilation": (1, 2), "padding": ((1, 1), (2, 3)), "groups": 2,
                                             "strides": (2, 1)})],
    "depth_as_features": [((2, 7, 6, 6, 3), (3, 3, 2, 3, 4),
                           {"strides": (2, 1, 2), "padding": ((1, 2), (0, 1), (1, 0)), "rhs_dilation": (2, 1, 1)}),
                          ((2, 7, 4, 4, 8), (4, 3, 2, 8, 4), {"strides": (3, 1, 1), "padding": ((5, 6), (0, 0), (1, 1)),
                                                              "rhs_dilation": (3, 1, 1)}),
                          ((2, 7, 4, 4, 9), (3, 3, 2, 9, 4), {"strides": (2, 2, 1),
                                                              "padding": ((-2, -1), (1, 0), (0, 0))})],
    "strided_slices": [((2, 5, 9, 3), (3, 5, 3, 4), {"rhs_dilation": (2, 2)}),
                       ((2, 7, 3), (3, 3, 4), {"rhs_dilation": (3,), "lhs_dilation": (1,)})],
    "depthwise_filter_gradient": [((6, 9, 9, 2), (7, 7, 2, 6), {"batch_groups": 6}),
                                  ((2, 7, 18, 3), (5, 16, 3, 32), {"batch_groups": 2}),
                                  ((2, 7, 9, 3), (3, 4, 3, 64), {"batch_groups": 2, "rhs_dilation": (2, 2)}),
                                  ((3, 9, 8, 2), (4, 3, 2, 6), {"batch_groups": 3, "rhs_dilation": (2, 3),
                                                                "padding": ((1, 0), (0, 2))})],
    "batch_groups": [((6, 9, 9, 4), (7, 7, 4, 4), {"batch_groups": 2}),
                     ((20, 9, 8, 3), (7, 6, 3, 30), {"batch_groups": 10, "padding": ((1, 0), (0, 2))}),
                     ((30, 9, 2), (4, 2, 12), {"batch_groups": 3, "strides": (2,)})],
    "depthwise": [((2, 8, 8, 6), (3, 3, 1, 12), {"groups": 6, "strides": (2, 1), "padding": ((1, 1), (1, 1))}),
                  ((2, 8, 9, 3), (4, 5, 1, 3), {"groups": 3, "padding": ((2, 1), (2, 2))})],
    "sums_for_filters": [((2, 8, 9, 9), (3, 3, 3, 24), {"groups": 3, "strides": (2, 1), "padding": ((1, 1), (0, 2))}),
                         ((2, 8, 40), (5, 8, 40), {"groups": 5, "strides": (2,), "rhs_dilation": (2,),
                                                   "padding": ((3, 2),)}),
                         ((2, 3, 4, 5, 4), (3, 3, 2, 2, 16), {"groups": 2, "lhs_dilation": (2, 1, 3),
                                                              "padding": ((0, 0), (-1, 2), (0, 0))})],
    "sums_by_filter": [((6, 9, 20, 2), (7, 18, 2, 16), {"batch_groups": 2, "padding": ((1, 0), (0, 1))}),
                       ((4, 40, 3), (17, 3, 16), {"batch_groups": 2, "strides": (2,), "rhs_dilation": (2,),
                                                  "padding": ((-1, 2),)}),
                       ((6, 4, 9, 33, 2), (3, 3, 33, 2, 24), {"batch_groups": 3, "lhs_dilation": (2, 1, 1),
                                                              "strides": (2, 1, 1), "rhs_dilation": (1, 3, 1),
                                                              "padding": ((0, 0), (0, 0), (2, 1))})],
    "few_features": [((2, 8, 9, 6), (3, 3, 3, 4), {"groups": 2, "strides": (2, 1), "padding": ((1, 1), (0, 2))}),
                     ((2, 8, 20), (3, 4, 15), {"groups": 5, "rhs_dilation": (2,), "padding": ((-1, 2),)}),
                     ((2, 3, 4, 5, 4), (2, 3, 2, 2, 6), {"groups": 2, "lhs_dilation": (2, 1, 1)})],
    "blocks_of_groups": [((2, 8, 8, 6), (3, 3, 3, 4), {"groups": 2, "strides": (1, 2)}),
                         ((2, 8, 52), (8, 13, 16), {"groups": 4})],
    "few_filters": [((2, 8, 10, 5), (3, 3, 5, 8), {"strides": (2, 1)}), ((2, 10, 5), (3, 5, 4), {}),
                    ((2, 8, 8, 5), (3, 3, 5, 3), {"padding": ((1, 1), (2, 0)), "lhs_dilation": (2, 1)})],
    "phases_as_samples": [((2, 9, 11, 5), (3, 3, 5, 7), {"rhs_dilation": (2, 3), "strides": (2, 1),
                                                         "padding": ((1, 2), (3, -1))}),
                          ((2, 17, 4), (4, 4, 16), {"rhs_dilation": (2,), "padding": ((2, 4),)}),
                          ((2, 3, 6, 8, 2), (1, 2, 3, 2, 4), {"rhs_dilation": (1, 1, 2), "lhs_dilation": (1, 2, 1)})],
    "winograd": [((2, 7, 8, 48), (3, 3, 48, 90), {"padding": ((1, 1), (0, 2))}),
                 ((13, 9, 8, 30), (7, 5, 30, 31), {"padding": ((-1, 3), (0, 0))}),
                 ((1, 9, 6, 30), (7, 3, 30, 31), {"padding": ((4, 3), (0, 0))}),
                 ((2, 21, 90), (5, 90, 64), {"padding": ((4, 4),)}),
                 ((2, 11, 12, 48), (3, 3, 48, 90), {"padding": ((1, 2), (0, 3)), "rhs_dilation": (3, 2)}),
                 ((1, 4, 6, 5, 16), (3, 3, 3, 16, 17), {"padding": ((1, 1),) * 3}),
                 ((6, 40, 50, 45), (3, 3, 45, 48), {"padding": ((1, 1), (0, 1))}),
                 ((1, 4, 8, 5, 32), (3, 3, 3, 32, 33), {"padding": ((1, 1),) * 3})],
    "winograd_filter_gradient": [((48, 8, 10, 3), (6, 8, 3, 50), {}),
                                 ((30, 9, 8, 2), (3, 4, 2, 31), {"padding": ((0, 0), (-1, 1))}),
                                 ((128, 8, 2), (8, 2, 128), {"padding": ((1, 1),)}),
                                 ((48, 9, 12, 3), (7, 6, 3, 50), {"strides": (2, 3), "padding": ((1, 1), (1, 0))})],
    "winograd_filter_gradient_of_phases": [
        ((48, 8, 5, 3), (16, 11, 3, 30), {"lhs_dilation": (2, 2), "padding": ((1, 3), (1, 3))}),
        ((40, 7, 4, 2), (9, 12, 2, 30), {"lhs_dilation": (1, 3), "padding": ((1, 3), (7, 0))}),
        ((70, 8, 2), (16, 2, 60), {"lhs_dilation": (2,), "padding": ((2, 4),)})],
    "winograd_products_of_samples": [((3, 26, 36, 4), (24, 32, 4, 17), {"padding": ((0, 0), (2, -1))}),
                                     ((2, 35, 20, 3), (32, 16, 3, 33), {"padding": ((1, 2), (0, 0))}),
                                     ((3, 40, 34, 6), (40, 32, 6, 16), {"padding": ((3, 3), (0, 0))})],
    "parts_of_samples": [((33, 31, 40, 20), (29, 19, 20, 35), {"strides": (1, 2), "padding": ((0, 1), (0, -1))}),
                         ((90, 128, 50), (127, 50, 70), {"padding": ((1, 0),)})],
    "products_of_samples": [((2, 32, 22, 2), (28, 20, 2, 32), {"padding": ((1, 0), (0, 2))}),
                            ((2, 53, 28, 3), (24, 24, 3, 33), {"rhs_dilation": (2, 1), "strides": (2, 3)}),
                            ((2, 600, 2), (590, 2, 32), {}),
                            ((2, 22, 13, 9), (10, 11, 9, 33), {"rhs_dilation": (2, 1), "strides": (2, 1)}),
                            ((1, 13, 90), (11, 90, 32), {"padding": ((0, 1),)})],
    "columns_with_features": [((2, 7, 9, 3), (3, 3, 3, 5), {"strides": (1, 2), "padding": ((0, 1), (1, 1))}),
                              ((2, 17, 2), (5, 2, 4), {"strides": (3,), "lhs_dilation": (2,), "padding": ((1, 2),)}),
                              ((2, 3, 4, 5, 2), (1, 2, 3, 2, 4), {"padding": ((0, 0), (-1, 2), (2, -1))})],
    "library": [((2, 8, 8, 8), (3, 3, 8, 40), {"strides": (2, 2)}),
                ((2, 9, 8), (3, 8, 40), {"strides": (2,), "padding": ((1, 2),), "rhs_dilation": (2,)}),
                ((2, 6, 6, 20), (3, 3, 20, 17), {"padding": ((-1, 2), (0, -2))}),
                ((2, 5, 8, 17), (3, 3, 17, 3), {"padding": ((1, 1), (1, 1))}),
                ((2, 4, 4, 3), (1, 1, 3, 5), {"lhs_dilation": (2, 2), "padding": ((0, 1), (2, 0))})],
}


def test_every_form_has_an_example():
    assert {form.__name__ for form in FORMS} == set(EXAMPLES)


@pytest.mark.when_changed
@pytest.mark.parametrize(("name", "number"), [(name, i) for name in EXAMPLES for i in range(len(EXAMPLES[name]))])
def test_a_form_computes_the_convolution(name, number):
    lhs, rhs, options = EXAMPLES[name][number]
    rank, used = len(lhs) - 2, []
    defaults = {"groups": 1, "batch_groups": 1, "strides": (1,) * rank, "padding": ((0, 0),) * rank,
                "lhs_dilation": (1,) * rank, "rhs_dilation": (1,) * rank}
    geometry = Convolution(**defaults | options, params={})

    def convolve(lhs, rhs, geometry):
        for form in FORMS:
            if (out := form(lhs, rhs, geometry, convolve)) is not None:
                used.append(form.__name__)
                return out
        return None

    with jax.enable_x64(True):
        draw = np.random.default_rng(0).normal
        operands = [jnp.asarray(draw(size=shape)) for shape in (lhs, rhs)]
        expected = lax.conv_general_dilated(
            *operands, geometry.strides, geometry.padding, geometry.lhs_dilation, geometry.rhs_dilation, NUMBERS[rank],
            feature_group_count=geometry.groups, batch_group_count=geometry.batch_groups)
        out = jax.jit(lambda lhs, rhs: convolve(lhs, rhs, geometry))(*operands)
    assert name in used
    assert used.count(name) == 1 or not name.startswith("winograd"), "sums of sums have larger rounding errors"
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-12 * np.abs(expected).max())


@pytest.mark.when_changed
@pytest.mark.parametrize("window", [3, 5, 7])
def test_winograds_forms_lose_less_than_one_digit_in_float32(window):
    draw = np.random.default_rng(0).normal
    x, w = draw(size=(4, 16, 16, 64)), draw(size=(window, window, 64, 64))
    g = draw(size=(4, 16, 16, 64))

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def results(x, w, g):
        out, pull_back = jax.vjp(convolve, x, w)
        return out, *pull_back(g)

    with jax.enable_x64(True):
        exact = [*map(np.asarray, jax.jit(results)(x, w, g))]
    operands = [a.astype(np.float32) for a in (x, w, g)]
    plain, rewritten = jax.jit(results)(*operands), jax.jit(rewrite(results))(*operands)
    for a, b, c in zip(exact, map(np.asarray, plain), map(np.asarray, rewritten), strict=True):
        assert 0 < np.abs(c - b).max() < 10 * np.finfo(np.float32).eps * window * np.abs(a).max()
        assert np.linalg.norm(c - a) < 10 * np.linalg.norm(b - a)
