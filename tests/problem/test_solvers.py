"""Local solvers against NumPy, and the samples in their minibatches."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.problem.oracle import NO_MEMORY, Oracle
from resolvent.problem.sample_oracle import SampleOracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.xla.shuffle import Shuffle


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


class Visits(Oracle):
    """The gradient is -1 for each sample of the minibatch: SGD with learning rate 1 counts how often it uses each."""

    def value(self, w):
        return jnp.sum(w)

    def grad(self, w):
        return -jnp.ones_like(w)

    def batch_grad(self, w, positions, mask, memory=()):
        return -jnp.zeros_like(w).at[positions].add(mask.astype(w.dtype)), memory


@partial(jax.jit, static_argnames="room")
def visit(solver, samples, effort, key, room):
    start = jnp.zeros(room)
    return solver(rv.problems.Subproblem(Visits(samples=samples), start), start, jax.random.key(key), effort)


def visits(solver, samples, *, effort=1.0, room=32, key=0):
    w, steps, _ = visit(solver, jnp.array(samples), jnp.array(effort), key, room)
    return np.asarray(w), int(steps)


@nightly.parametrize("samples", [1, 7, 8, 2, 9, 31], per_commit=2)
@nightly.parametrize("batch", [4, 40, 1])
def test_an_epoch_meets_every_sample_once(samples, batch):
    counts, steps = visits(rv.SGD(1.0, batch_size=batch, epochs=3), samples)
    np.testing.assert_array_equal(counts[:samples], 3)
    np.testing.assert_array_equal(counts[samples:], 0)
    assert steps == 3 * -(-samples // batch)


def test_steps_stop_within_an_epoch_and_do_not_repeat_a_sample():
    counts, steps = visits(rv.SGD(1.0, batch_size=3, steps=5), 20)
    assert steps == 5
    assert sorted(counts[:20]) == [0] * 5 + [1] * 15
    counts, steps = visits(rv.SGD(1.0, batch_size=4, steps=4), 10)  # an epoch is 4, 4 and 2 samples
    assert steps == 4
    assert sorted(counts[:10]) == [1] * 6 + [2] * 4


@nightly.parametrize("samples", [7, 1, 8, 31])
@nightly.parametrize("budget", [{"epochs": 3}, {}, {"steps": 5}])
def test_work_is_the_batches_that_are_read(samples, budget):
    for solver in (rv.SGD(1.0, batch_size=4, **budget), rv.solvers.adam(0.1, batch_size=4, **budget)):
        _, steps = visits(solver, samples)
        assert solver.work(jnp.array([samples])).tolist() == [4 * steps]
    assert rv.solvers.GD(0.1, steps=3).work(jnp.array([samples, 2])).tolist() == [3 * samples, 6]
    assert rv.solvers.ClosedForm().work(jnp.array([samples, 2])).tolist() == [samples, 2]


@nightly.parametrize(("effort", "epochs"), [(0.101, 2), (0.1, 1), (0.0, 0), (1.0, 10), (0.55, 6), (0.01, 1)],
                     per_commit=3)
def test_partial_work_is_the_next_whole_epoch(effort, epochs):
    counts, _ = visits(rv.SGD(1.0, batch_size=4, epochs=10), 9, effort=effort)
    np.testing.assert_array_equal(counts[:9], epochs)


@nightly.parametrize("total", [7, 3, 20], per_commit=0)
def test_every_epoch_count_that_effort_x_over_e_asks_for_is_met(total):
    for x in range(1, total + 1):
        assert visits(rv.SGD(1.0, batch_size=9, epochs=total), 5, effort=x / total)[0][0] == x


@nightly.parametrize(("effort", "steps"), [(0.51, 4), (0.5, 3), (0.0, 0), (1.0, 6), (0.01, 1)], per_commit=3)
def test_partial_work_may_stop_after_any_step(effort, steps):
    counts, made = visits(rv.SGD(1.0, batch_size=4, epochs=2, stop="step"), 10, effort=effort)  # 4, 4 and 2 samples
    assert made == steps
    assert counts.sum() == [0, 4, 8, 10, 14, 18, 20][steps]
    assert counts.max() - counts[:10].min() <= 1  # an epoch is finished before the next begins
    with pytest.raises(ValueError, match=r"SGD\(stop='round'\) must be 'epoch' or 'step'"):
        rv.SGD(1.0, stop="round")


@nightly.parametrize("solver", [
    rv.SGD(0.1, epochs=10), rv.SGD(0.1, epochs=10, stop="step"), rv.solvers.adam(0.1, steps=10), rv.SGD(0.1, steps=10),
    rv.solvers.GD(0.1, steps=10), rv.solvers.LBFGS(steps=10), rv.solvers.ClosedForm()], ids=repr, per_commit=3)
def test_the_smallest_effort_is_one_step(solver):
    """2^-24 is the smallest effort of a straggler: 1 minus a draw from [0, 1) in float32."""
    start = jnp.zeros(2)
    sub = rv.problems.Subproblem(rv.problems.QuadraticProblem(jnp.eye(2)[None], jnp.ones((1, 2))).oracle(0), start)
    run = jax.jit(lambda effort: solver(sub, start, jax.random.key(0), effort)[1])
    assert [int(run(jnp.array(effort, jnp.float32))) for effort in (0.0, 2.0**-24, 1e-5)] == [0, 1, 1]


def test_a_part_of_an_epoch_or_of_a_step_is_exact_or_refused():
    """Half an epoch of 40 samples in batches of 10 is two steps."""
    half = rv.SGD(0.1, batch_size=10, epochs=0.5, stop="step")
    assert int(half.count_steps(jnp.array(40), jnp.array(1.0))) == 2
    for make, message in ((lambda: rv.SGD(0.1, epochs=0.5), r"SGD\(epochs=0.5\) is not a whole number.*stop='step'"),
                          (lambda: rv.SGD(0.1, steps=2.5), r"SGD\(steps=2.5\) is not a whole number"),
                          (lambda: rv.solvers.adam(0.1, epochs=1.5), r"OptaxSolver\(epochs=1.5\) is not a whole"),
                          (lambda: rv.solvers.GD(0.1, steps=2.5), r"GD\(steps=2.5\) is not a whole number"),
                          (lambda: rv.solvers.LBFGS(steps=0.5), r"LBFGS\(steps=0.5\) is not a whole number"),
                          (lambda: rv.OptaxSolver(optax.sgd(0.1), steps=2.5), r"OptaxSolver\(steps=2.5\) is not a"),
                          (lambda: rv.SGD(0.1, epochs=np.float32(0.5)), r"SGD\(epochs=0.5\) is not a whole number"),
                          (lambda: rv.SGD(0.1, epochs=np.array(0.5)), r"SGD\(epochs=0.5\) is not a whole number"),
                          (lambda: rv.OptaxSolver(optax.sgd(0.1), steps=jnp.array([2, 2.5])), "is not a whole number")):
        with pytest.raises(rv.InputError, match=message):
            make()
    assert rv.SGD(0.1, epochs=2.0).epochs == 2  # a whole number may be a float


@pytest.mark.parametrize(("clip", "expected"), [(None, [-1.0, -1.0]), (1.0, [-(0.5**0.5)] * 2), (2.0, [-1.0, -1.0])])
@pytest.mark.parametrize("proximal", ["implicit", "explicit"])
def test_the_gradient_of_f_is_clipped_and_no_other_term(clip, expected, proximal):
    """The gradient is -1 in each of two coordinates; the linear term is 3 and the pull to the center 4 (w - 1)."""
    start = jnp.zeros(2)
    sub = rv.problems.Subproblem(Visits(samples=jnp.array(2)), start + 1, 4.0, start + 3)
    w, _, _ = rv.SGD(0.1, batch_size=2, steps=1, proximal=proximal, clip=clip)(sub, start, jax.random.key(0), 1.0)
    moved = -0.1 * (np.array(expected) + 3)
    np.testing.assert_allclose(w, (moved + 0.4) / 1.4 if proximal == "implicit" else moved + 0.4, rtol=1e-12)


def test_orders_differ_between_epochs_and_keys():
    first = [tuple(visits(rv.SGD(1.0, batch_size=5, steps=1), 20, key=k)[0]) for k in range(5)]
    assert len(set(first)) == 5
    after_a_step, _ = visits(rv.SGD(1.0, batch_size=5, steps=1), 20)
    after_an_epoch, _ = visits(rv.SGD(1.0, batch_size=5, steps=5), 20)
    assert tuple(after_an_epoch - 1) != tuple(after_a_step)


def softmax_grad(w, b, x, y):
    logits = x @ w.T + b
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    return p.T @ x / len(y), p.mean(axis=0)


@pytest.mark.parametrize("proximal", ["implicit", "explicit"])
def test_sgd_is_its_numpy_twin(proximal):
    """Multinomial logistic regression with a proximal and a linear term, and minibatches in the shuffled order."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)), rng.integers(0, 3, 40)
    offset, n, batch, eta, s, l2 = 7, 11, 4, 0.3, 0.7, 0.05
    oracle = SampleOracle(samples=jnp.array(n), model=rv.models.logistic(3, 3, l2=l2), x=jnp.asarray(x),
                          y=jnp.asarray(y), offset=jnp.array(offset), block=4)
    start, centre, linear = ({"weight": jnp.asarray(rng.normal(size=(3, 3))), "bias": jnp.asarray(rng.normal(size=3))}
                             for _ in range(3))
    key = jax.random.key(5)
    solver = rv.SGD(eta, batch_size=batch, epochs=2, proximal=proximal)
    actual, _, _ = solver(rv.problems.Subproblem(oracle, centre, s, linear), start, key, jnp.array(1.0))

    w = {k: np.array(v) for k, v in start.items()}
    for epoch in range(2):
        order = np.asarray(Shuffle.draw(jax.random.fold_in(key, epoch), jnp.array(n))(jnp.arange(n)))
        for i in range(0, n, batch):
            rows = offset + order[i:i + batch]
            gw, gb = softmax_grad(w["weight"], w["bias"], x[rows], y[rows])
            for name, g in (("weight", gw), ("bias", gb)):
                g = g + l2 * w[name] + np.asarray(linear[name])
                c = np.asarray(centre[name])
                w[name] = (w[name] - eta * (g + s * (w[name] - c)) if proximal == "explicit"
                           else (w[name] - eta * g + eta * s * c) / (1 + eta * s))
    for name in w:
        np.testing.assert_allclose(actual[name], w[name], atol=1e-13)


@pytest.mark.when_changed
def test_gd_is_sgd_with_one_batch():
    problem = rv.problems.LearningProblem(rv.models.logistic(4, 3), rv.FederatedData.from_arrays(
        [np.random.default_rng(1).normal(size=(9, 4))], [np.arange(9) % 3], validation=0, test=0))
    sub = rv.problems.Subproblem(problem.oracle(jnp.array(0)), problem.init(jax.random.key(0)), 0.2)
    start = jax.tree.map(lambda leaf: leaf + 0.3, sub.center)
    actual = rv.solvers.GD(0.5, steps=6)(sub, start, jax.random.key(1), jnp.array(1.0))[0]
    expected = rv.SGD(0.5, batch_size=9, epochs=6)(sub, start, jax.random.key(1), jnp.array(1.0))[0]
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-14)


def test_closed_form_has_no_gradient_left():
    rng = np.random.default_rng(3)
    a, b, centre, linear = (jnp.asarray(rng.normal(size=shape)) for shape in ((1, 8, 5), (1, 8), 5, 5))
    oracle = rv.problems.QuadraticProblem.least_squares(a, b).oracle(jnp.array(0))
    sub = rv.problems.Subproblem(oracle, centre, 0.4, linear)
    start = jnp.zeros(5)
    w, _, _ = rv.solvers.ClosedForm()(sub, start, jax.random.key(0), jnp.array(1.0))
    assert float(jnp.abs(sub.grad(w)).max()) < 1e-12
    assert float(sub.inexactness(w, start)) < 1e-12
    np.testing.assert_array_equal(rv.solvers.ClosedForm()(sub, start, jax.random.key(0), jnp.array(0.0))[0], start)
    np.testing.assert_allclose(sub.grad(w), jax.grad(sub.value)(w), atol=1e-12)


def test_inexactness_of_one_gradient_step_by_hand():
    """FedProx, Definition 2: on w^2 (1 + mu)/2 - g w a step eta scales the gradient by |1 - eta(1 + mu)|."""
    problem = rv.problems.QuadraticProblem(jnp.ones((1, 1, 1)), jnp.full((1, 1), 3.0))
    sub = rv.problems.Subproblem(problem.oracle(jnp.array(0)), jnp.zeros(1), 0.5)
    w, _, _ = rv.solvers.GD(0.2, proximal="explicit")(sub, jnp.zeros(1), jax.random.key(0), jnp.array(1.0))
    assert float(sub.inexactness(w, jnp.zeros(1))) == pytest.approx(1 - 0.2 * 1.5, abs=1e-14)


@nightly.parametrize("block", [4, 1, 64], per_commit=2)
def test_full_gradient_and_value_do_not_depend_on_the_block(block):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.integers(0, 3, 30)
    model = rv.models.logistic(3, 3)
    w = {"weight": jnp.asarray(rng.normal(size=(3, 3))), "bias": jnp.zeros(3)}
    oracle = SampleOracle(samples=jnp.array(13), model=model, x=jnp.asarray(x), y=jnp.asarray(y), offset=jnp.array(9),
                          block=block)
    gw, gb = softmax_grad(np.asarray(w["weight"]), np.zeros(3), x[9:22], y[9:22])
    np.testing.assert_allclose(oracle.grad(w)["weight"], gw, atol=1e-14)
    np.testing.assert_allclose(oracle.grad(w)["bias"], gb, atol=1e-14)
    logits = x[9:22] @ np.asarray(w["weight"]).T
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(13), y[9:22]]
    assert float(oracle.value(w)) == pytest.approx(loss.mean(), abs=1e-13)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.SGD(0.1, batch_size=0), r"SGD\(batch_size=0\)"),
    (lambda: rv.SGD(-0.1), r"SGD\(learning_rate=-0.1\)"),
    (lambda: rv.SGD(0.1, epochs=0), r"SGD\(epochs=0\)"),
    (lambda: rv.SGD(0.1, epochs=1, steps=2), "epochs= or steps=, not both"),
    (lambda: rv.solvers.GD(0.1, proximal="both"), r"proximal='both'\) must be 'implicit' or 'explicit'"),
])
def test_wrong_settings_are_refused_when_built(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_closed_form_refuses_samples():
    data = rv.datasets.synthetic(parties=2)
    refusal = "needs a quadratic problem, got SampleOracle"
    with pytest.raises(rv.InputError, match=refusal):
        rv.simulate(rv.fedavg(rv.solvers.ClosedForm()), rv.models.linear(10), data, rounds=1, progress=False)


@pytest.mark.when_changed
def test_a_users_own_solver():
    class Halve(LocalSolver):
        """A solver that moves halfway to the centre."""

        amount: float = eqx.field(default=0.5)

        def __call__(self, subproblem, start, key, effort, memory=NO_MEMORY):
            w = jax.tree.map(lambda a, c: a + self.amount * (c - a), start, subproblem.center)
            return w, jnp.array(1), memory

    sub = rv.problems.Subproblem(Visits(samples=jnp.array(1)), jnp.full(2, 4.0))
    np.testing.assert_array_equal(Halve()(sub, jnp.zeros(2), jax.random.key(0), jnp.array(1.0))[0], 2.0)
