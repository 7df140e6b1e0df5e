"""Algorithms with one mistake fail the clause of the contract that is about it, with a message that names the cause."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import pytest

import resolvent as rv
from resolvent import testing
from resolvent.algorithms.method import SharedModelMethod, local_work
from resolvent.math import tree
from resolvent.problem.subproblem import Subproblem
from resolvent.solvers import LocalSolver


class WeightedMean(SharedModelMethod):
    """FedAvg as an author would write it."""

    solver: LocalSolver
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = False

    def party(self, state, shared, oracle, key, effort):
        w, info = local_work(self.solver, Subproblem(oracle, shared), shared, key, effort)
        return state, w, info

    def server(self, shared, replies, key):
        return replies.mean(), {}


class PlainMean(WeightedMean):
    def server(self, shared, replies, key):
        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), replies.payload), {}


class PlainMeanOfPresent(WeightedMean):
    """Says that it needs each reply, which keeps ``check_declarations`` from finding the mistake."""

    needs_individual_replies: ClassVar[bool] = True

    def server(self, shared, replies, key):
        share = replies.alive / jnp.maximum(jnp.sum(replies.alive), 1)
        return jax.tree.map(lambda leaf: jnp.tensordot(share.astype(leaf.dtype), leaf, axes=1), replies.payload), {}


class RandomParty(WeightedMean):
    """Moves towards a random reply, drawn in the precision of the program."""

    needs_individual_replies: ClassVar[bool] = True

    def server(self, shared, replies, key):
        k = jax.random.randint(key, (), 0, len(replies.weight))
        return tree.lerp(replies.mean(), tree.rows(replies.payload, k), 0.5), {}


class RandomPartyIn32Bits(RandomParty):
    def server(self, shared, replies, key):
        k = jax.random.randint(key, (), 0, len(replies.weight), jnp.int32)
        return tree.lerp(replies.mean(), tree.rows(replies.payload, k), 0.5), {}


@pytest.mark.parametrize("make", [PlainMean, PlainMeanOfPresent])
def test_a_mean_without_weights_is_found(make):
    with pytest.raises(AssertionError, match=r"mean of the replies without their weights.*use replies\.mean\(\)"):
        testing.check_weights(make)
    assert testing.check_weights in testing.CHECKS


@pytest.mark.parametrize("make", [
    WeightedMean, lambda solver: rv.robust(solver, rv.aggregators.Krum(0.2)), rv.local, rv.scaffold])
def test_servers_that_weigh_replies_or_select_one_pass(make):
    testing.check_weights(make)


@pytest.mark.when_changed
def test_a_draw_whose_bits_depend_on_the_precision_is_named():
    with pytest.raises(AssertionError, match=r"drawn with 64 bits in float64.*jax\.random\.randint\(.*jnp\.int32\)"):
        testing.check_dtypes(RandomParty)


class PythonIf(WeightedMean):
    def server(self, shared, replies, key):
        return (replies.mean() if tree.norm(replies.mean()) > 1 else shared), {}


class Storing(WeightedMean):
    def server(self, shared, replies, key):
        self.solver = None
        return replies.mean(), {}


@pytest.mark.when_changed
@pytest.mark.parametrize(("make", "message"), [
    (PythonIf, r"check_\w+: test_contract_mistakes.py:\d+: in server, .*Python's if.*use jnp\.where"),
    (Storing, r"in server, .*an algorithm does not change: return what the next round needs as a part of the state")])
def test_an_error_in_a_function_of_the_algorithm_names_the_line_and_the_likely_cause(make, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_algorithm(make)


@pytest.mark.nightly
def test_a_draw_of_32_bits_passes():
    testing.check_dtypes(RandomPartyIn32Bits)
