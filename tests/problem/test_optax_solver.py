"""Optax solvers against a plain loop over the same batches, and L-BFGS against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nightly
import resolvent as rv
from resolvent.problem.quadratic import QuadraticOracle
from resolvent.xla.shuffle import Shuffle

KEY = jax.random.key(5)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def subproblem(rng, samples=11):
    """Logistic regression with a proximal and a linear term."""
    x, y = rng.normal(size=(samples, 3)), rng.integers(0, 3, samples)
    data = rv.FederatedData.from_arrays([x], [y], validation=0, test=0, classes=["0", "1", "2"])
    problem = rv.problems.LearningProblem(rv.models.logistic(3, 3, l2=0.05), data)
    start, centre, linear = ({"weight": jnp.asarray(rng.normal(size=(3, 3))), "bias": jnp.asarray(rng.normal(size=3))}
                             for _ in range(3))
    return rv.problems.Subproblem(problem.oracle(jnp.array(0)), centre, 0.7, linear), start


@nightly.parametrize(("solver", "optimizer"), [
    (rv.solvers.momentum(0.1, decay=0.8, batch_size=4, epochs=3), optax.sgd(0.1, momentum=0.8)),
    (rv.solvers.adam(0.1, b1=0.7, b2=0.9, eps=1e-3, batch_size=4, epochs=3), optax.adam(0.1, 0.7, 0.9, 1e-3)),
    (rv.OptaxSolver(optax.adamw(0.1, weight_decay=0.2), batch_size=4, epochs=3),
     optax.adamw(0.1, weight_decay=0.2)),
    (rv.solvers.optax_solver("adamw", 0.1, settings={"weight_decay": 0.2}, batch_size=4, epochs=3),
     optax.adamw(0.1, weight_decay=0.2)),
], ids=["momentum", "adam", "any", "by name"])
@nightly.parametrize(("effort", "epochs"), [(0.4, 2), (1.0, 3), (0.0, 0)])
def test_an_optax_solver_is_a_plain_loop_over_sgds_batches(solver, optimizer, effort, epochs):
    sub, start = subproblem(np.random.default_rng(0))
    answer, steps, _ = solver(sub, start, KEY, jnp.array(effort))
    w, memory = start, optimizer.init(start)

    def objective(v, rows):
        logits = sub.oracle.x[rows] @ v["weight"].T + v["bias"]
        loss = optax.losses.softmax_cross_entropy_with_integer_labels(logits, sub.oracle.y[rows]).mean()
        flat = jax.tree.map(lambda a, c, q: 0.025 * jnp.sum(a * a) + jnp.sum(q * a)
                            + 0.35 * jnp.sum((a - c) ** 2), v, sub.center, sub.linear)
        return loss + flat["weight"] + flat["bias"]

    @jax.jit
    def step(w, memory, rows):
        update, memory = optimizer.update(jax.grad(objective)(w, rows), memory, w)
        return optax.apply_updates(w, update), memory

    for epoch in range(epochs):
        order = np.asarray(Shuffle.draw(jax.random.fold_in(KEY, epoch), jnp.array(11))(jnp.arange(11)))
        for i in range(0, 11, 4):
            w, memory = step(w, memory, jnp.asarray(order[i:i + 4]))
    assert int(steps) == 3 * epochs
    for name in w:
        np.testing.assert_allclose(answer[name], w[name], atol=1e-13)


@pytest.mark.when_changed
def test_without_momentum_it_is_sgd_with_the_explicit_step():
    sub, start = subproblem(np.random.default_rng(1))
    actual = rv.solvers.momentum(0.3, decay=0.0, batch_size=4, steps=7)(sub, start, KEY, jnp.array(1.0))[0]
    expected = rv.SGD(0.3, batch_size=4, steps=7, proximal="explicit")(sub, start, KEY, jnp.array(1.0))[0]
    for name in actual:
        np.testing.assert_allclose(actual[name], expected[name], atol=1e-14)


@pytest.mark.when_changed
def test_lbfgs_solves_proximal_quadratics_as_the_closed_form_does():
    """In lanes: the parties have different linear systems, and one party has effort 0."""
    rng = np.random.default_rng(2)
    problem = rv.problems.QuadraticProblem.least_squares(jnp.asarray(rng.normal(size=(4, 9, 6))),
                                                jnp.asarray(rng.normal(size=(4, 9))))
    centre, linear, start = (jnp.asarray(rng.normal(size=(4, 6))) for _ in range(3))
    efforts = jnp.array([1.0, 1.0, 1.0, 0.0])

    def solved(solver):
        def of_party(k, c, q, w, effort):
            return solver(rv.problems.Subproblem(problem.oracle(k), c, 0.4, q), w, KEY, effort)
        return jax.jit(jax.vmap(of_party))(jnp.arange(4), centre, linear, start, efforts)

    (w, steps, _), (exact, _, _) = solved(rv.solvers.LBFGS(steps=100, tolerance=1e-10)), solved(rv.solvers.ClosedForm())
    np.testing.assert_allclose(w, exact, atol=1e-9)
    assert (np.asarray(steps[:3]) < 40).all()
    assert int(steps[3]) == 0
    np.testing.assert_array_equal(w[3], start[3])


@pytest.mark.nightly
def test_lbfgs_on_samples_leaves_no_gradient_and_honours_partial_work():
    sub, start = subproblem(np.random.default_rng(3))
    w, _, _ = jax.jit(rv.solvers.LBFGS(steps=100, tolerance=1e-9))(sub, start, KEY, jnp.array(1.0))
    assert max(float(jnp.abs(g).max()) for g in jax.tree.leaves(sub.grad(w))) < 1e-9
    part, steps, _ = rv.solvers.LBFGS(steps=10, tolerance=0.0)(sub, start, KEY, jnp.array(0.25))
    assert int(steps) == 3
    assert float(sub.value(part)) < float(sub.value(start))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_adam_in_half_precision_has_moments_in_float32(dtype):
    """The squares of gradients of 1e-5 are zero in float16. Adam moves by its learning rate all the same."""
    def oracle(dtype):
        return QuadraticOracle(jnp.array(1), jnp.zeros((3, 3), dtype), jnp.array([1e-5, -1e-5, 0], dtype),
                               jnp.zeros((), dtype))

    start = jnp.zeros(3, dtype)
    w, _, _ = rv.solvers.adam(0.1, steps=4)(rv.problems.Subproblem(oracle(dtype), start), start, KEY, jnp.array(1.0))
    assert w.dtype == dtype
    np.testing.assert_allclose(w.astype(jnp.float32), [0.4, -0.4, 0], rtol=0.02)


@pytest.mark.nightly
def test_solvers_keep_float32():
    h = jnp.asarray([[2.0, 0.5], [0.5, 1.0]], jnp.float32)
    oracle = QuadraticOracle(jnp.array(1), h, jnp.ones(2, jnp.float32), jnp.zeros((), jnp.float32))
    start = jnp.zeros(2, jnp.float32)
    sub = rv.problems.Subproblem(oracle, start, jnp.asarray(0.3))  # a float64 weight
    for solver in (rv.solvers.adam(0.1, steps=3), rv.solvers.momentum(0.1, steps=3), rv.solvers.LBFGS(steps=3)):
        assert solver(sub, start, KEY, jnp.array(1.0, jnp.float32))[0].dtype == jnp.float32


@pytest.mark.parametrize(("make", "message"), [
    (lambda: rv.solvers.adam(0.0), r"adam\(learning_rate=0.0\)"),
    (lambda: rv.solvers.adam(0.1, b2=1.0), r"adam\(b2=1.0\)"),
    (lambda: rv.solvers.momentum(0.1, decay=1.5), r"momentum\(decay=1.5\)"),
    (lambda: rv.solvers.momentum(0.1, epochs=1, steps=2), "OptaxSolver takes epochs= or steps=, not both"),
    (lambda: rv.solvers.LBFGS(steps=0), r"LBFGS\(steps=0\)"),
    (lambda: rv.solvers.LBFGS(history_size=0), r"LBFGS\(history_size=0\)"),
])
def test_wrong_settings_are_refused_when_built(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.nightly
def test_a_federation_with_each_solver():
    """FedProx with L-BFGS equals FedProx with the closed form, and a user's solver runs in a federation."""
    rng = np.random.default_rng(4)
    problem = rv.problems.QuadraticProblem.least_squares(jnp.asarray(rng.normal(size=(3, 5, 4))),
                                                jnp.asarray(rng.normal(size=(3, 5))))

    class Sketched(rv.solvers.LocalSolver):
        """The least that a user's solver must do: respect the effort, return parameters, steps made and memory."""

        rate: float

        def __call__(self, subproblem, start, key, effort, memory):
            w = jax.tree.map(lambda a, g: a - self.rate * g, start, subproblem.grad(start))
            w = jax.tree.map(lambda a, b: jnp.where(effort > 0, a, b), w, start)
            return w, (effort > 0).astype(jnp.int32), memory

    def final(solver):
        return rv.simulate(rv.fedprox(solver, mu=0.5), problem, rounds=5, progress=False).server_model

    exact = final(rv.solvers.ClosedForm())
    np.testing.assert_allclose(final(rv.solvers.LBFGS(steps=100, tolerance=1e-11)), exact, atol=1e-9)
    np.testing.assert_allclose(final(Sketched(0.05)), final(rv.solvers.GD(0.05, proximal="explicit")), atol=1e-13)
