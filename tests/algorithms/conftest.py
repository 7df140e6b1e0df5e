"""Everything here is exact: float64."""

import jax
import pytest


@pytest.fixture(autouse=True)
def float64(request):
    """float64, but for the contract, which chooses for itself."""
    if "contract" in request.module.__name__:
        yield
    else:
        with jax.enable_x64(True):
            yield
