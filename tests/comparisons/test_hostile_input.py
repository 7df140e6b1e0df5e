"""A fixed part of the campaigns of wrong arguments and mutated experiment files."""

import equinox as eqx
import numpy as np
import optax
import pytest
from hostile_arguments import IMPOSSIBLE, public_parts, run_all, run_random, run_right
from hostile_experiments import run

import resolvent as rv
from resolvent.arguments import CheckedArguments
from resolvent.errors import InputError

SOLVER = rv.SGD(0.1)


class StaticTuple(CheckedArguments, eqx.Module):
    parties: tuple[int, ...] = eqx.field(static=True)


def test_every_argument_of_every_public_part_refuses_impossible_values():
    assert len(public_parts()) > 100
    assert run_all(IMPOSSIBLE[:3]) == []


@pytest.mark.when_changed
def test_random_arguments_are_accepted_or_refused_by_name():
    assert run_random(cases=300, seed=1) == []


def test_mutated_experiment_files_bind_or_are_refused_with_their_line(tmp_path):
    assert run(60, 1, tmp_path) == []


WRONG = {
    "number for a solver": (lambda: rv.fedprox(0.1), "fedprox(solver=0.1) must be a LocalSolver, such as SGD(0.1)"),
    "class for a solver": (lambda: rv.fedprox(rv.SGD),
                           "a LocalSolver, such as SGD(0.1), not the class SGD: call it, SGD(...)"),
    "choice": (lambda: rv.fedplus(SOLVER, rv.penalties.L1(), aggregate="activ"),
               "fedplus(aggregate='activ') must be 'active' or 'all'; did you mean 'active'?"),
    "infinity": (lambda: rv.fedplus(SOLVER, rv.penalties.L1(), sigma=np.inf),
                 "fedplus(sigma=inf) must be a finite number"),
    "not a number": (lambda: rv.SGD(np.nan), "SGD(learning_rate=nan) must be a finite number"),
    "fraction of a party": (lambda: rv.participation.Uniform(1.5), "Uniform(cohort=1.5) must be a whole number"),
    "fraction of a sample": (lambda: rv.SGD(0.1, batch_size=2.5), "SGD(batch_size=2.5) must be an integer"),
    "true": (lambda: rv.fedprox(SOLVER, mu=True), "fedprox(mu=True) must be a finite number"),
    "nothing": (lambda: rv.partitions.IID(None), "IID(parties=None) must be an integer"),
    "list for a static tuple": (lambda: StaticTuple([1]), "not a list: write (0, 1)"),
    "rounds": (lambda: rv.simulate(rv.local(SOLVER), rv.models.logistic(3, 2), rounds=np.nan),
               "simulate(rounds=nan) must be an integer"),
    "seed": (lambda: rv.simulate(rv.local(SOLVER), rv.models.logistic(3, 2), rounds=1, seed=2**40),
             "simulate(seed=1099511627776) must be an integer of at least 0; integers must be smaller than 2^31"),
    "function for a metric": (lambda: rv.simulate(rv.local(SOLVER), rv.models.logistic(3, 2), rounds=1, metrics=[max]),
                              "a Metric, such as metrics.from_function(f, higher_is_better=True)"),
    "data": (lambda: rv.simulate(rv.local(SOLVER), rv.models.logistic(3, 2), (np.zeros(3), np.zeros(3)), rounds=1),
             "must be a FederatedData, such as FederatedData.from_arrays(inputs, labels) or None, got a tuple"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_argument_is_refused_at_the_call(case):
    call, wanted = WRONG[case]
    with pytest.raises(InputError) as caught:
        call()
    assert wanted in str(caught.value)


def test_a_function_within_a_function_is_not_taken_for_one_that_makes_the_part():
    with pytest.raises(InputError, match=r"Cosine\(rounds=100\) or None, not the function schedule$"):
        rv.SGD(0.1, schedule=optax.cosine_decay_schedule(1.0, 10))


def test_traced_numbers_pass():
    import jax
    import jax.numpy as jnp

    weights = jax.vmap(lambda mu: rv.fedprox(rv.SGD(mu), mu=mu).mu)(jnp.array([0.1, 0.2]))
    assert np.allclose(weights, [0.1, 0.2])


@pytest.mark.nightly
def test_right_arguments_of_other_number_types_are_accepted():
    """A refused right argument is a failure, as an accepted wrong one is."""
    assert run_right() == []
