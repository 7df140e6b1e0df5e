"""What the functions of an algorithm return is checked: an error names the function, the entry and what to return."""

from types import SimpleNamespace

import jax.numpy as jnp
import pytest

from resolvent.algorithms.algorithm import Phase
from resolvent.algorithms.phase_results import check_models, checked_phases, party_work, server_work
from resolvent.errors import InputError

VECTOR, COUNT = jnp.ones(3), jnp.array(0)
STATE = {"w": VECTOR, "t": COUNT}


@pytest.mark.parametrize(("results", "message"), [
    (None, r"returned None: .*`return state, reply, info`"),
    ((STATE, VECTOR), "returned a tuple of 2 values"),
    ((STATE, VECTOR, VECTOR), r"info that is an array of float32 with shape \[3\]: return a dictionary"),
    (((), VECTOR, {}), r"returned as state \(\), and the state before was {'t': array, 'w': array}: .*init_party"),
    ((VECTOR, STATE, {}), "returned as state array, and"),
    (({"w": 1.0, "t": COUNT}, VECTOR, {}), r"the entry 'w' is .*shape \[\], and before .*shape \[3\]"),
    (({"w": VECTOR, "t": COUNT + 0.5}, VECTOR, {}), "the entry 't' is an array of float32 .*before .*int32"),
    ((STATE, {"w": VECTOR, "name": "mine"}, {}), "has the entry 'name', which is a value of type str"),
])
def test_results_of_a_party_are_checked(results, message):
    phase = Phase(message=None, party=lambda *arguments: results, server=None)
    with pytest.raises(InputError, match=rf"<lambda>.*{message}"):
        party_work(phase, STATE, VECTOR, None, None, jnp.ones(()))


@pytest.mark.parametrize(("results", "message"), [
    (STATE, "returned a value of type dict: .*`return state, {}`"),
    ((STATE | {"w": jnp.ones((4, 3))}, {}), r"'w' is .*shape \[4, 3\], and before .*shape \[3\]: .*with which init "),
    ((STATE, {"norms": VECTOR}), r"info in which 'norms' is .*shape \[3\]: a run records numbers"),
])
def test_results_of_a_server_are_checked(results, message):
    with pytest.raises(InputError, match=message):
        server_work(Phase(message=None, party=None, server=lambda *arguments: results), STATE, None, None)


def test_numbers_that_a_state_can_hold_are_accepted():
    half, counter = {"w": VECTOR.astype(jnp.float16), "t": COUNT}, {"w": VECTOR, "t": 1}
    assert party_work(Phase(None, lambda *arguments: (half, (), {}), None), STATE, (), None, None, None)[0] is half
    assert server_work(Phase(None, None, lambda *arguments: (counter, {})), STATE, None, None) == (counter, {})


def test_phases_and_models_are_checked():
    with pytest.raises(InputError, match=r"SimpleNamespace.phases is a Phase of 3 values: .*returns a tuple"):
        checked_phases(SimpleNamespace(phases=Phase(None, None, None)))
    for personal, shared, message in ((STATE, None, "personal_model returned {.*but the first model is array"),
                                      (VECTOR, jnp.ones(()), r"server_model returned a model in which .*shape \[\]"),
                                      (VECTOR, (), "server_model .*or None if there is no shared model")):
        with pytest.raises(InputError, match=message):
            check_models(SimpleNamespace(), VECTOR, personal, shared)
