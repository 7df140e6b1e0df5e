"""The theorems of the papers. All comparisons are in float64; expectations are closed forms in NumPy."""

import jax
import pytest


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield
