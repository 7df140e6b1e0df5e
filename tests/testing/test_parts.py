"""The contracts of parts: all parts of the library pass them, and parts with one mistake do not."""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent import testing
from resolvent.algorithms.cohort import Cohort
from resolvent.math import centres, tree

A, C, P, S, R = rv.aggregators, rv.codecs, rv.penalties, rv.solvers, rv.participation

AGGREGATORS = [  # of each kind one first: linear, by coordinates, of whole replies, with the server's own reply
    A.Mean(), A.TrimmedMean(0.2), A.Krum(0.2), A.TrustScores(),
    A.CoordinateMedian(), A.GeometricMedian(), A.MoreauCentre(P.L1(), 0.3), A.MoreauCentre(P.SquaredL2(), 0.3),
    A.MultiKrum(0.2), A.Bulyan(0.15), A.CentredClipping(0.9), A.NormBound(),
    A.NearestNeighbourMixing(A.GeometricMedian(), 0.2), A.Bucketing(A.GeometricMedian()), A.LowRankMean()]
CODECS = [C.RandK(k=3), C.Identity(), C.TopK(k=3), C.NaturalCompression(), C.QSGD(levels=4)]
PENALTIES = [P.L1(), P.L2Norm(), P.SquaredL2(), P.Zero(), P.OriginIndicator(), P.Quadratic(np.arange(7.0)),
             P.Scaled(P.L2Norm(), 2.0), P.PerLayer({"head": P.L1()}, default=P.L2Norm())]
SOLVERS = [rv.SGD(0.1, batch_size=4, epochs=2), S.GD(0.1, steps=3), S.ClosedForm(), S.adam(0.1, batch_size=4),
           S.momentum(0.1, batch_size=4), S.LBFGS(steps=3), S.SVRG(0.1, batch_size=4), S.Newton(steps=3),
           S.DPSGD(0.1, clip=1.0, noise_multiplier=1.0)]
PARTICIPATIONS = [R.Full(), R.Uniform(4), R.BySize(4), R.BiasedBySize(4), R.Bernoulli(0.5),
                  R.Stragglers(R.Uniform(4), share=0.5, parties=[1]), R.FixedEffort(0.5), R.Dropout(0.3),
                  R.MarkovOnOff(on=0.3, off=0.3), R.UniformAvailable(3, R.MarkovOnOff(on=0.3, off=0.3)),
                  R.DayNight(period=6), R.Outages([0, 1, 0, 1, 0, 1, 0], failure=0.1, repair=0.3, single=0.9),
                  R.AvailabilityTable(np.full((3, 7), 0.5)),
                  R.AvailabilityFunction(lambda t, n: jnp.full(n.shape, 0.5)),
                  R.MembershipPeriods(joins=[0, 0, 3, 1, 2, 0, 0]), R.Arrivals(np.arange(1.0, 8.0))]


def name(part):
    return type(part).__name__


def classes(module, base):
    return {part for part in vars(module).values()
            if isinstance(part, type) and issubclass(part, base) and not part.__abstractmethods__
            and part.__name__ in module.__all__}


@pytest.mark.parametrize(("module", "base", "parts"), [
    (A, A.Aggregator, AGGREGATORS), (C, C.Codec, CODECS), (P, P.Penalty, PENALTIES),
    (R, R.Participation, PARTICIPATIONS), (S, S.LocalSolver, SOLVERS)],
    ids=["aggregators", "codecs", "penalties", "participations", "solvers"])
def test_every_part_of_the_library_is_checked(module, base, parts):
    assert {part.__name__ for part in classes(module, base)} == {name(part) for part in parts}


@nightly.parametrize("aggregator", AGGREGATORS, ids=name, per_commit=4)
def test_aggregators(aggregator):
    testing.check_aggregator(aggregator)


@pytest.mark.when_changed
@nightly.parametrize("codec", CODECS, ids=name)
def test_codecs(codec):
    testing.check_codec(codec)


@nightly.parametrize("penalty", PENALTIES, ids=name)
def test_penalties(penalty):
    testing.check_penalty(penalty)


@pytest.mark.when_changed
@nightly.parametrize("solver", SOLVERS, ids=name)
def test_solvers(solver):
    testing.check_solver(solver)


@nightly.parametrize("participation", PARTICIPATIONS, ids=name, per_commit=2)
def test_participations(participation):
    testing.check_participation(participation)


class PlainMean(A.Aggregator):
    """Ignores weights, and with them absence."""

    linear: ClassVar[bool] = True
    breakdown_point: ClassVar[float] = 0.0

    def __call__(self, replies, centre=None, key=None):
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), replies.payload), {}


class Boastful(PlainMean):
    """A mean that claims to withstand malicious replies."""

    breakdown_point: ClassVar[float] = 0.4

    def __call__(self, replies, centre=None, key=None):
        return replies.mean(), {}


class NotLinear(Boastful):
    breakdown_point: ClassVar[float] = 0.0

    def __call__(self, replies, centre=None, key=None):
        return centres.coordinate_median(replies.payload, replies.weight), {}


class FirstReply(Boastful):
    linear: ClassVar[bool] = False
    breakdown_point: ClassVar[float] = 0.0

    def __call__(self, replies, centre=None, key=None):
        return tree.rows(replies.payload, jnp.argmax(replies.weight > 0)), {}


class Widens(Boastful):
    breakdown_point: ClassVar[float] = 0.0

    def __call__(self, replies, centre=None, key=None):
        return tree.widen(replies.mean()), {}


@nightly.parametrize(("aggregator", "message"), [
    (PlainMean(), "a reply of weight zero"), (Boastful(), "9 malicious replies of 23"), (NotLinear(), "linear is True"),
    (FirstReply(), "order of the replies"), (Widens(), "float16 replies")], ids=name, per_commit=2)
def test_aggregators_with_a_mistake(aggregator, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_aggregator(aggregator)


class Halved(C.TopK):
    """Decodes half of every entry, and says that it is unbiased."""

    unbiased: ClassVar[bool] = True

    def unpack(self, content, like):
        return super().unpack(content, like) / 2


class TooShort(C.QSGD):
    def count(self, size, dtype):
        return size


class Overflows(C.QSGD):
    """Its norm squares the entries."""

    def pack(self, x, key):
        norm = jnp.sqrt(jnp.sum(x * x))
        level = jnp.round(self.levels * x / jnp.where(norm > 0, norm, 1))
        return norm, level.astype(jnp.int16)


class Optimistic(C.TopK):
    def omega(self, size):
        return 0.01


@nightly.parametrize(("codec", "message"), [
    (Halved(k=12), "but unbiased is True|more than omega"), (TooShort(), "but its content is packed into"),
    (Overflows(), "unbiased|more than omega|not finite"), (Optimistic(k=3), "more than omega")], ids=name)
def test_codecs_with_a_mistake(codec, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_codec(codec)


class WrongStep(P.L1):
    """A soft threshold by 1 instead of t."""

    def prox(self, x, t):
        return super().prox(x, 1.0)

    def pull(self, x, t):
        return super().pull(x, 1.0)


class WrongPull(P.L1):
    def pull(self, x, t):
        return jax.tree.map(lambda leaf: leaf / 2, x)


class NotConvex(P.Penalty):
    """Counts the entries that are not zero: a hard threshold."""

    def value(self, x):
        return sum(jnp.sum(leaf != 0) for leaf in jax.tree.leaves(x)).astype(tree.dtype(x))

    def prox(self, x, t):
        return jax.tree.map(lambda leaf: jnp.where(leaf**2 > 2 * t, leaf, 0), x)


class Unbounded(P.SquaredL2):
    has_bounded_pull: ClassVar[bool] = True


@nightly.parametrize(("penalty", "message"), [
    (WrongStep(), "does not minimise"), (WrongPull(), "do not add up to x|does not minimise"),
    (NotConvex(), "convex|majorise|nonexpansive"),
    (Unbounded(), "has_bounded_pull is True")], ids=name, per_commit=2)
def test_penalties_with_a_mistake(penalty, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_penalty(penalty)


class Lazy(S.LocalSolver):
    """Gradient steps on the oracle alone."""

    def __call__(self, subproblem, start, key, effort, memory=()):
        w = jnp.where(effort > 0, start - 0.1 * subproblem.oracle.grad(start), start)
        return w, (effort > 0).astype(jnp.int32), memory


class Eager(S.GD):
    """Works without effort too."""

    def __call__(self, subproblem, start, key, effort, memory=()):
        return super().__call__(subproblem, start, key, jnp.maximum(effort, 0.1), memory)


class Rounds(S.GD):
    """Small efforts are rounded to no step."""

    def count_steps(self, samples, effort):
        return jnp.round(effort * self.steps).astype(jnp.int32)


class Ascends(S.GD):
    def __call__(self, subproblem, start, key, effort, memory=()):
        w, steps, memory = super().__call__(subproblem, start, key, effort, memory)
        return 2 * start - w, steps, memory


@nightly.parametrize(("solver", "message"), [
    (Lazy(), "whatever center is"), (Eager(0.1, steps=3), "steps at the effort 0"),
    (Rounds(0.1, steps=3), "no step at a positive effort"), (Ascends(0.1, steps=3), "does not lower"),
    (S.GD(1e30, steps=300), "diverges|does not lower")], ids=name, per_commit=3)
def test_solvers_with_a_mistake(solver, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_solver(solver)


class Unfair(R.Uniform):
    """The cohort has other shares than all parties."""

    def shares(self, sizes):
        return 2 * super().shares(sizes)


class Twice(R.Uniform):
    def draw(self, state, key, t, sizes):
        return Cohort.from_parties(jnp.zeros(self.cohort, jnp.int32), self.shares(sizes)), state


@pytest.mark.parametrize(("participation", "message"), [
    (Unfair(3), "sum to 2"), (Twice(3), "drew party 0 twice")], ids=name)
def test_participations_with_a_mistake(participation, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_participation(participation)
