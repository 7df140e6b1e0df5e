"""What the functions of an algorithm return is checked: an error names the function, the entry and what to return."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import resolvent as rv
from resolvent.algorithms.algorithm import Phase, check_models, checked_phases, party_work, server_work
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


class Forgets(rv.aggregators.Mean):
    """A mistake: the info is missing."""

    def __call__(self, replies, centre=None, key=None):
        return VECTOR


def test_error_names_the_aggregator_inside_a_combinator_and_the_codec():
    algorithm = rv.combinators.SharedUntilTrained(rv.robust(rv.solvers.GD(0.1), Forgets()))
    with pytest.raises(InputError, match=r"ModelAggregation\.server with Forgets returned an array of float32"):
        server_work(algorithm.phases[0], algorithm.init(VECTOR, jnp.ones(1)), None, None)
    with pytest.raises(InputError, match=r"Mistake\.unpack returned .* shape \[1\], but .* shape \[3\]: return"):
        Mistake(k=1).encode(VECTOR, jax.random.key(0)).decoded()


class Mistake(rv.codecs.TopK):
    """A mistake: the vector is not as long as before."""

    def unpack(self, content, like):
        return content[1]


def test_numbers_that_a_state_can_hold_are_accepted():
    half, counter = {"w": VECTOR.astype(jnp.float16), "t": COUNT}, {"w": VECTOR, "t": 1}
    assert party_work(Phase(None, lambda *arguments: (half, (), {}), None), STATE, (), None, None, None)[0] is half
    assert server_work(Phase(None, None, lambda *arguments: (counter, {})), STATE, None, None) == (counter, {})


class WithStep(type(rv.fedavg(rv.SGD(0.1)))):
    """Sends a step size with the model, and declares no origin."""

    def message(self, state, k):
        return {"model": state, "step": jnp.ones(())}

    def party(self, state, message, oracle, key, effort):
        return super().party(state, message["model"], oracle, key, effort)

    def personal_model(self, state, message, oracle):
        return message["model"]


class Declared(WithStep):
    def origin(self, message):
        return message["model"]


@pytest.mark.when_changed
def test_the_model_of_which_a_reply_is_an_update_is_declared():
    problem = rv.problems.QuadraticProblem(jnp.ones((3, 1, 1)), jnp.ones((3, 1)))
    solver = rv.solvers.GD(0.1)

    def run(algorithm):
        return rv.simulate(algorithm, problem, rounds=2, progress=False).server_model

    with pytest.raises(InputError, match=r"WithStep: replies_models is True, and the origin.*such as `message.model`"):
        run(WithStep(solver))
    averaged = rv.combinators.Momentum(Declared(solver), decay=0.5)
    assert run(averaged) == run(rv.combinators.Momentum(rv.fedavg(solver), decay=0.5))


def test_phases_and_models_are_checked():
    with pytest.raises(InputError, match=r"SimpleNamespace.phases is a Phase of 4 values: .*returns a tuple"):
        checked_phases(SimpleNamespace(phases=Phase(None, None, None)))
    with pytest.raises(InputError, match="replies_models is True, so the last phase needs an origin"):
        checked_phases(SimpleNamespace(phases=(Phase(None, None, None),), replies_models=True))
    for personal, shared, message in ((STATE, None, "personal_model returned {.*but the first model is array"),
                                      (VECTOR, jnp.ones(()), r"server_model returned a model in which .*shape \[\]"),
                                      (VECTOR, (), "server_model .*or None if there is no shared model")):
        with pytest.raises(InputError, match=message):
            check_models(SimpleNamespace(), VECTOR, personal, shared)
