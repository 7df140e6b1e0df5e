"""The same secrets in each run: a site splits its rows and orders its minibatches by a secret."""

import secrets
from random import Random

import pytest

from pictures import drawing

__all__ = ["drawing"]


def _draw_from(seed, monkeypatch):
    random = Random(seed)
    monkeypatch.setattr(secrets, "token_bytes", lambda length=None: random.randbytes(length or secrets.DEFAULT_ENTROPY))


@pytest.fixture(scope="module", autouse=True)
def secrets_of_the_module(request):
    """Those that fixtures of the module draw."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _draw_from(request.node.nodeid, monkeypatch)
        yield


@pytest.fixture(autouse=True)
def secrets_of_the_test(request, monkeypatch):
    _draw_from(request.node.nodeid, monkeypatch)
