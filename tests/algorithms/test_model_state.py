"""Models with a state: BatchNorm's statistics against plain loops, under every policy, and where a state cannot be."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from helpers import SEED, classification, equal, personal_models, trajectory
from stateful_network import MOMENTUM, RATE, SMALL, Network, problem

import nightly
import resolvent as rv
from resolvent.algorithms.combinators.held_out import _interpolated
from resolvent.algorithms.combinators.prepared import with_memory
from resolvent.math import tree
from resolvent.problem.models.stateful import ParamsAndState
from resolvent.testing import assert_close, python_rounds

EPS, ROUNDS = 1e-5, 3
SGD = rv.SGD(RATE, batch_size=8, epochs=2)  # each minibatch has all eight samples of a party
ModelState = rv.combinators.ModelState


def arrays(params):
    """The parameters of the network, with the names of the plain loop."""
    return {"A": params.body.weight, "a": params.body.bias, "scale": params.norm.weight, "shift": params.norm.bias,
            "B": params.head.weight, "b": params.head.bias}


def plain_outputs(w, x, mean, variance):
    h = (x @ w["A"].T + w["a"] - mean) / jnp.sqrt(variance + EPS) * w["scale"] + w["shift"]
    return jnp.tanh(h) @ w["B"].T + w["b"]


def plain_loss(w, x, y, statistics=None):
    h = x @ w["A"].T + w["a"]
    mean, variance = statistics or (h.mean(axis=0), ((h - h.mean(axis=0)) ** 2).mean(axis=0))
    return -jnp.mean(jax.nn.log_softmax(plain_outputs(w, x, mean, variance))[jnp.arange(len(y)), y])


plain_gradient = jax.jit(jax.grad(plain_loss))


def plain_work(w, state, x, y, *, frozen=False, pull=lambda w: w):
    """Two steps on all samples, each followed by a pull, and the statistics after them, by NumPy."""
    count, mean, variance = state
    for _ in range(2):
        h = np.asarray(x @ w["A"].T + w["a"])
        statistics = (mean, variance) if frozen else None
        gradient = plain_gradient(w, x, y, statistics)
        w = pull({name: w[name] - RATE * gradient[name] for name in w})
        if not frozen:
            count = count + 1
            mean = MOMENTUM * mean + (1 - MOMENTUM) * h.mean(axis=0)
            variance = MOMENTUM * variance + (1 - MOMENTUM) * h.var(axis=0)
    return w, (count, mean, variance)


def samples(k):
    of_all = problem()
    first = int(of_all.offset[0, k])
    return of_all.x[first:first + 8], of_all.y[first:first + 8]


def values(state):
    """The state of the network: the number of steps, the mean and the variance."""
    return (state["norm.batch_counter"], *state["norm.batch_state_index"])


def average(trees):
    return jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *trees)


@pytest.mark.when_changed
@nightly.parametrize("policy", ["average", "private", "frozen"])
def test_statistics_by_a_plain_loop(policy):
    algorithm = ModelState(rv.fedavg(SGD), policy)
    trained = trajectory(algorithm, problem(), ROUNDS)
    shared, states = arrays(trained[0].server.inner), [(0, np.zeros(4), np.ones(4))] * 3
    assert isinstance(problem().init(jax.random.key(0)), ParamsAndState)
    for federation in trained[1:]:
        results = [plain_work(shared, states[k], *samples(k), frozen=policy == "frozen") for k in range(3)]
        shared, states = average([w for w, _ in results]), [state for _, state in results]
        if policy == "average":
            states = [average(states)] * 3
            equal(values(federation.server.extra), states[0])
        elif policy == "private":
            equal(values(federation.parties.extra.state.value), jax.tree.map(lambda *rows: np.stack(rows), *states))
        equal(arrays(federation.server.inner), shared)
    personal = personal_models(algorithm, problem(), trained[-1])
    equal(values(personal.state), jax.tree.map(lambda *rows: np.stack(rows), *states))
    for k, (count, mean, variance) in enumerate(states):
        model, debias = tree.rows(personal, k), 1 - MOMENTUM**count if count else 1
        equal(problem().model.apply(model, samples(k)[0]),
              plain_outputs(arrays(model.params), samples(k)[0], mean / debias, variance / debias), 1e-6)
    if policy == "frozen":
        equal(values(trained[-1].server.extra), (0, np.zeros(4), np.ones(4)))


@nightly.parametrize("policy", ["average", "private"], per_commit=0, others=nightly.WHEN_CHANGED)
def test_evaluation_uses_the_statistics_of_the_policy(policy):
    result = rv.simulate(ModelState(rv.fedavg(SGD), policy), problem(), rounds=2, progress=False)
    for k in range(3):
        model = result.personal_model(k)
        count, mean, variance = values(model.state)
        debias = 1 - MOMENTUM**count
        outputs = plain_outputs(arrays(model.params), samples(k)[0], mean / debias, variance / debias)
        equal(problem().model.apply(model, samples(k)[0]), outputs, 1e-6)
    assert (result.server_model is None) == (policy == "private")


def gradient_and_state(oracle, w, positions, mask):
    return jax.jit(lambda params, state: oracle.batch_grad(params, positions, mask, state))(
        w.params, w.state)


def test_a_short_minibatch_has_the_statistics_of_its_samples():
    of_all = problem()
    w = of_all.init(jax.random.key(3))
    oracle = of_all.oracle(jnp.array(1)).with_model_state(w.state, changes=True)
    mask = jnp.arange(8) < 4  # four samples, each of them twice
    x, y = (part[jnp.array([6, 1, 3, 0])] for part in samples(1))
    gradient, after = gradient_and_state(oracle, w, jnp.array([6, 1, 3, 0, 7, 7, 7, 7]), mask)
    equal(arrays(gradient), plain_gradient(arrays(w.params), x, y))
    h = x @ w.params.body.weight.T + w.params.body.bias
    count, mean, variance = values(after)
    assert count == 1
    equal(mean, 0.1 * h.mean(axis=0))
    equal(variance, MOMENTUM + 0.1 * np.var(h, axis=0))


COMPOSITIONS = {
    "average": lambda s: rv.fedavg(s, stragglers="drop"),
    "private": lambda s: ModelState(rv.fedprox(s, mu=0.3), "private"),
    "frozen, private gradients": lambda s: ModelState(rv.fedavg(rv.solvers.DPSGD(
        0.1, clip=1.0, noise_multiplier=0.5, batch_size=3, steps=3)), "frozen"),
    "a linear term": lambda s: rv.scaffold(s),
    "a map": lambda s: rv.fedsam(s),
    "codecs": lambda s: rv.combinators.Compressed(rv.fedavg(s), rv.codecs.QSGD(4)),
    "an objective": lambda s: rv.moon(s),
    "personal layers": lambda s: rv.fedbn(s, layers=("norm",)),
    "memory of the solver": lambda s: rv.fedavg(rv.solvers.adam(0.05, batch_size=3, keep=True)),
    "training alone": rv.local,
    "attacks and medians": lambda s: rv.attacked(rv.coordinate_median(s), rv.attacks.SignFlip(), share=0.3),
    "two phases": lambda s: rv.feddane(s),
}


@nightly.parametrize("name", COMPOSITIONS, per_commit=0)
def test_the_simulator_follows_a_plain_loop(name):
    algorithm, of_all = COMPOSITIONS[name](SMALL), problem((1, 5, 9, 4))
    participation = rv.participation.Stragglers(rv.participation.Uniform(3), share=0.4)
    expected = python_rounds(algorithm, of_all, participation, int(SEED), ROUNDS)
    states = trajectory(algorithm, of_all, ROUNDS, participation)
    for state, like in zip(states, expected, strict=True):
        assert_close(state, like, 1e-11)
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (expected[0], expected[-1])), strict=True)]
    assert any(moved)


@pytest.mark.when_changed
def test_dittos_two_models_have_statistics_of_their_own_by_a_plain_loop():
    """Those of the shared model are averaged; those of a party's own model stay with it, and are what it uses."""
    lam = 0.3
    algorithm = with_memory(rv.ditto(SGD, lam=lam), problem())
    trained = trajectory(algorithm, problem(), ROUNDS)
    first = (0, np.zeros(4), np.ones(4))
    shared, average_state = arrays(trained[0].server.inner), first
    own = [(shared, first)] * 3
    kappa = 1 / (1 + RATE * lam)
    for federation in trained[1:]:
        own = [plain_work(v, state, *samples(k), pull=lambda w, s=shared: {
            name: kappa * w[name] + (1 - kappa) * s[name] for name in w}) for k, (v, state) in enumerate(own)]
        replies = [plain_work(shared, average_state, *samples(k)) for k in range(3)]
        shared, average_state = average([w for w, _ in replies]), average([state for _, state in replies])
        equal(arrays(federation.server.inner), shared)
        equal(values(federation.server.extra), average_state)
    personal = personal_models(algorithm, problem(), trained[-1])
    equal(arrays(personal.params), jax.tree.map(lambda *rows: np.stack(rows), *[v for v, _ in own]))
    equal(values(personal.state), jax.tree.map(lambda *rows: np.stack(rows), *[state for _, state in own]))


def test_a_mixture_of_models_has_the_mixture_of_their_states():
    first, second = (problem().init(jax.random.key(seed)) for seed in range(2))
    second = ParamsAndState(second.params, jax.tree.map(lambda leaf: leaf + 2, second.state))
    half = _interpolated(first, second, jnp.array(0.5))
    equal(half.params, tree.lerp(first.params, second.params, 0.5))
    for a, b, c in zip(*map(values, (half.state, first.state, second.state)), strict=True):
        equal(a, (b + c) / 2)


@nightly.parametrize("policy", ["average", "private"], per_commit=0, others=nightly.WHEN_CHANGED)
def test_an_interpolation_mixes_the_trained_models_with_their_states(policy):
    """v_k of the interpolation is the model that ``local`` trains, with its statistics."""
    inner = rv.fedavg(SGD)
    algorithm = ModelState(rv.combinators.HeldOutInterpolation(inner, SGD, points=3), policy)
    state, alone, joint = (trajectory(a, problem(), ROUNDS)[-1]
                           for a in (algorithm, ModelState(rv.local(SGD), "private"), ModelState(inner, policy)))
    own, shared = (personal_models(a, problem(), s) for a, s in (
        (ModelState(rv.local(SGD), "private"), alone), (ModelState(inner, policy), joint)))
    oracle = problem().oracle(jnp.array(1))
    row = jax.tree.map(lambda leaf: leaf[1], state.parties)
    message = algorithm.model_message(state.server, jnp.array(1))
    local, mixed = jax.tree.map(lambda leaf: leaf[1], own), jax.tree.map(lambda leaf: leaf[1], shared)
    equal(algorithm.personal_model(row, message, oracle), local)  # nobody has held-out samples: s is 0
    half = _interpolated(local, mixed, jnp.array(0.5))
    equal(half.params, tree.lerp(local.params, mixed.params, 0.5))
    for a, b, c in zip(*map(values, (half.state, local.state, mixed.state)), strict=True):
        equal(a, (b + c) / 2)


PERSONAL = {
    "ditto": rv.ditto,
    "fedrep": lambda s: rv.fedrep(s, layers=("head*",)),
    "apfl": rv.apfl,
    "pfedme": lambda s: rv.pfedme(s, steps=2),
    "fed+": lambda s: rv.fedgeomed_plus(s, sigma=1.0, delta=0.1),
    "interpolation": lambda s: rv.combinators.HeldOutInterpolation(rv.fedavg(s), s),
    "flix around ditto": lambda s: rv.combinators.ExplicitMixture(rv.ditto(s), s, alpha=0.5),
    "fine-tuned": lambda s: rv.combinators.FineTuned(rv.combinators.SharedUntilTrained(rv.ditto(s)), s),
    "candidates": lambda s: rv.combinators.HeldOutSelection(rv.fedprox(s, mu=0.1), (rv.fedprox(s, mu=1.0),)),
}


@nightly.parametrize("name", PERSONAL, per_commit=0, others=nightly.WHEN_CHANGED)
def test_methods_with_several_models_run_with_statistics(name):
    """In the simulator as in a plain loop, and every party's own model has moved with statistics of its own."""
    of_all = problem((4, 5, 9))
    algorithm = with_memory(PERSONAL[name](SMALL), of_all)
    expected = python_rounds(algorithm, of_all, rv.participation.Full(), int(SEED), 2)
    states = trajectory(algorithm, of_all, 2)
    for state, like in zip(states, expected, strict=True):
        assert_close(state, like, 1e-11)
    personal = personal_models(algorithm, of_all, states[-1])
    count, mean, _ = values(personal.state)
    assert np.all(count > 0)
    assert np.all(np.isfinite(mean))
    assert np.any(mean != 0)


@pytest.mark.when_changed
def test_the_state_is_no_parameter_of_a_proximal_term_a_codec_or_l2():
    of_all = problem()
    w = of_all.init(jax.random.key(0))
    prepared = with_memory(rv.combinators.Compressed(rv.fedprox(SGD, mu=1.0), rv.codecs.TopK(k=2)), of_all)
    phase, server = prepared.phases[0], prepared.init(w, jnp.full(3, 1 / 3))
    party = prepared.init_party(w, of_all.oracle(jnp.array(0)), jax.random.key(1))
    _, reply, _ = phase.party(party, phase.message(server, jnp.array(0)), of_all.oracle(jnp.array(0)),
                              jax.random.key(2), jnp.ones(()))
    assert not eqx.tree_equal(reply.extra, w.state)
    assert reply.inner.decoded() is not None
    assert jax.tree.structure(reply.inner.decoded()) == jax.tree.structure(w.params)


@pytest.mark.when_changed
def test_models_without_a_state_are_run_as_before():
    algorithm = rv.fedavg(SGD)
    assert with_memory(algorithm, classification()) is algorithm
    oracle = classification().oracle(jnp.array(0))
    w = classification().init(jax.random.key(0))
    assert oracle.init_memory(w) == oracle.batch_grad(w, jnp.arange(2), jnp.ones(2, bool))[1] == ()


def moments(values):
    return np.asarray(values).mean(axis=0), np.asarray(values).var(axis=0)


class LinenNetwork(linen.Module):
    @linen.compact
    def __call__(self, x, train=False):
        x = linen.BatchNorm(use_running_average=not train, momentum=MOMENTUM)(x)
        return linen.Dense(3)(linen.Dropout(0.3, deterministic=not train)(x))


class NnxNetwork(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.head = nnx.BatchNorm(3, momentum=MOMENTUM, rngs=rngs), nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


FLAX = {"linen": lambda: rv.models.from_flax(LinenNetwork(), np.zeros((1, 3)), training={"train": True}),
        "nnx": lambda: rv.models.from_nnx(lambda rngs: NnxNetwork(rngs))}


@pytest.mark.when_changed
@pytest.mark.parametrize("kind", FLAX)
def test_flax_modules_have_the_statistics_of_their_minibatches(kind):
    x = samples(1)[0]
    with jax.enable_x64(False):  # the dtype of Flax's statistics does not follow JAX's precision
        of_all = rv.problems.LearningProblem(FLAX[kind](), classification_data())
        w = of_all.init(jax.random.key(3))
        oracle = of_all.oracle(jnp.array(1)).with_model_state(w.state, changes=True).at_step(jax.random.key(4))
        _, after = gradient_and_state(oracle, w, jnp.arange(8), jnp.ones(8, bool))
    leaves, (mean, variance) = leaves_of(after), moments(x)
    equal(leaves["mean"], (1 - MOMENTUM) * mean, 1e-6)
    equal(leaves["var"], MOMENTUM + (1 - MOMENTUM) * variance, 1e-6)


def leaves_of(state):
    """The leaves of a state by the last part of their names."""
    return {name.split(".")[-1]: np.asarray(leaf) for name, leaf in tree.named_leaves(state)}


@nightly.parametrize("kind", FLAX, per_commit=0)
def test_runs_of_flax_modules_average_the_statistics(kind):
    data, algorithm = classification_data(), ModelState(rv.fedavg(rv.SGD(0.1, batch_size=8, epochs=1)), "average")
    with jax.enable_x64(False):  # the dtype of Flax's statistics does not follow JAX's precision
        of_all = rv.problems.LearningProblem(FLAX[kind](), data)
        state = rv.simulate(algorithm, of_all, rounds=1, progress=False).state.server.extra
        rv.simulate(ModelState(rv.fedavg(SMALL), "private"), of_all, rounds=1, progress=False)
    leaves = leaves_of(state)
    expected = [moments(samples(k)[0]) for k in range(3)]
    equal(leaves["mean"], (1 - MOMENTUM) * np.mean([mean for mean, _ in expected], axis=0), 1e-6)
    equal(leaves["var"], MOMENTUM + (1 - MOMENTUM) * np.mean([v for _, v in expected], axis=0), 1e-6)


def classification_data():
    x, y = zip(*[(np.asarray(a), np.asarray(b)) for a, b in map(samples, range(3))], strict=True)
    return rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])


@pytest.mark.nightly
def test_a_checkpoint_continues_with_the_state(tmp_path):
    run = partial(rv.simulate, rv.fedavg(SMALL), rv.models.from_equinox(Network, returns_features=True),
                  classification_data(), progress=False)
    whole = run(rounds=4)
    run(rounds=2, checkpoint=tmp_path / "run")
    assert run(rounds=4, checkpoint=tmp_path / "run").digest == whole.digest
    started = run(rounds=1, start=whole)
    assert values(started.server_model.state)[0] > values(whole.server_model.state)[0]


def test_equinoxs_batch_norm_runs_in_its_default_mode():
    class Averaged(eqx.Module):
        norm: eqx.nn.BatchNorm
        head: eqx.nn.Linear

        def __init__(self, key):
            self.norm, self.head = eqx.nn.BatchNorm(3, "batch", mode="ema"), eqx.nn.Linear(3, 3, key=key)

        def __call__(self, x, state):
            x, state = self.norm(x, state)
            return self.head(x), state

    of_all = rv.problems.LearningProblem(rv.models.from_equinox(Averaged), classification_data())
    w = of_all.init(jax.random.key(3))
    oracle = of_all.oracle(jnp.array(1)).with_model_state(w.state, changes=True)
    _, after = gradient_and_state(oracle, w, jnp.arange(8), jnp.ones(8, bool))
    leaves = leaves_of(after)
    assert not leaves["ema_first_time_index"]  # its first statistics are those of the first minibatch
    equal(leaves["0"], moments(samples(1)[0])[0], 1e-6)


class Sample(eqx.Module):
    """Two layers of BatchNorm under different names of the minibatch."""

    norms: list[eqx.nn.BatchNorm]

    def __init__(self, key):
        self.norms = [eqx.nn.BatchNorm(3, name, mode="batch") for name in ("a", "b")]

    def __call__(self, x, state):
        for norm in self.norms:
            x, state = norm(x, state)
        return x, state


MISTAKES = {
    "solver": (lambda: trajectory(rv.fedavg(rv.solvers.GD(0.1)), problem(), 1), "does not change the model's state"),
    "method": (lambda: trajectory(rv.dgd(learning_rate=0.1, alpha=1.0), problem(), 1),
               "does not hand on the memory of its local work"),
    "private gradients": (lambda: trajectory(rv.fedavg(rv.solvers.DPSGD(0.1)), problem(), 1), "noise"),
    "no state": (lambda: trajectory(ModelState(rv.fedavg(SGD)), classification(), 1), "leave ModelState out"),
    "inside": (lambda: trajectory(rv.combinators.SharedUntilTrained(ModelState(rv.fedavg(SGD))), problem(), 1),
               "around all other combinators"),
    "axes": (lambda: rv.models.from_equinox(Sample), r"axis names \['a', 'b'\]"),
    "no features": (lambda: rv.models.from_equinox(eqx.nn.make_with_state(
        lambda key: eqx.nn.BatchNorm(3, "batch", mode="batch"))).with_state({}).apply_with_features(None, None),
        "returns_features=True"),
    "policy": (lambda: ModelState(rv.fedavg(SGD), "mean"), "policy"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_clear_errors(name):
    run, message = MISTAKES[name]
    with pytest.raises(rv.InputError, match=message):
        run()
