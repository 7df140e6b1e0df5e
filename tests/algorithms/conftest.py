"""All comparisons in this folder are exact: float64. The contract chooses its precision itself."""

import jax
import pytest


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield
