"""Samples of any structure: built, split, divided, stored and trained like single arrays."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nightly
import resolvent as rv
from resolvent.data.partition.splits import join_splits, resplit
from resolvent.errors import InputError
from resolvent.simulator.checkpoint.identity import fingerprint_of


class Pair(NamedTuple):
    first: np.ndarray
    second: np.ndarray


def samples(sizes=(9, 14, 6), seed=0):
    """Inputs {image, meta: {age, kind}} and labels {number, tags}, both from the rows of one table."""
    rng = np.random.default_rng(seed)
    x = [{"image": rng.normal(size=(n, 2, 2)).astype(np.float32),
          "meta": {"age": rng.normal(size=n).astype(np.float32), "kind": rng.integers(0, 3, n)}} for n in sizes]
    y = [{"number": part["image"].sum((1, 2)) + part["meta"]["age"], "tags": rng.integers(0, 2, (n, 2))}
         for part, n in zip(x, sizes, strict=True)]
    return x, y


def model():
    """A linear model of all inputs, with two kinds of outputs."""
    def init(key):
        return {"w": jnp.zeros((8, 3)), "kind": jnp.zeros((3, 3))}

    def apply(p, x):
        rows = jnp.concatenate([x["image"].reshape(-1, 4), x["meta"]["age"][:, None]], axis=1)
        out = rows @ p["w"][:5] + p["kind"][x["meta"]["kind"]]
        return {"number": out[:, 0], "tags": out[:, 1:]}

    def loss(out, y):
        logits, tags = out["tags"], y["tags"].astype(out["tags"].dtype)
        return (out["number"] - y["number"]) ** 2 + jnp.mean(jnp.logaddexp(0, logits) - tags * logits, axis=1)

    return rv.models.from_functions(init, apply, loss=loss)


def flat_problem(data):
    """The same model on one array of inputs and one of labels: the plain twin."""
    def flatten(part):
        kind = np.eye(3, dtype=np.float32)[part["meta"]["kind"]]
        return np.concatenate([part["image"].reshape(-1, 4), part["meta"]["age"][:, None], kind], axis=1)

    def apply(p, x):
        return x[:, :5] @ p["w"][:5] + x[:, 5:] @ p["kind"]

    def loss(out, y):
        logits = out[:, 1:]
        return (out[:, 0] - y[:, 0]) ** 2 + jnp.mean(jnp.logaddexp(0, logits) - y[:, 1:] * logits, axis=1)

    plain = rv.FederatedData(flatten(data.x), np.concatenate([data.y["number"][:, None], data.y["tags"]], axis=1),
                             data.splits, data.parties, "regression")
    return rv.models.from_functions(model().init_function, apply, loss=loss), plain


@pytest.mark.when_changed
def test_a_structure_trains_as_its_flat_twin():
    data = rv.FederatedData.from_arrays(*samples())
    assert repr(data) == ("FederatedData('data', 3 parties, 17 training samples, inputs {image: [2, 2], meta.age: [], "
                          "meta.kind: []}, structured, labels {number: [], tags: [2]})")
    assert data.input_shape == {"image": (2, 2), "meta": {"age": (), "kind": ()}}
    algorithm = rv.fedprox(rv.SGD(0.05, batch_size=4, epochs=2), mu=0.1)
    results = [rv.simulate(algorithm, m, d, rounds=4, progress=False)
               for m, d in ((model(), data), flat_problem(data))]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6),
                 *(r.server_model for r in results))
    np.testing.assert_allclose(*(r.scores("test") for r in results), rtol=2e-5)


@pytest.mark.when_changed
@nightly.parametrize("memory", ["host", "disk"])
def test_memory_on_the_host_and_files_give_the_same_run(tmp_path, memory):
    x, y = samples()
    data = rv.FederatedData.from_arrays(x, y)
    stored = data if memory == "host" else rv.write_packed(tmp_path / "packed", zip(x, y, strict=True))
    assert fingerprint_of(data.splits) == fingerprint_of(stored.splits)
    for k in range(3):
        jax.tree.map(np.testing.assert_array_equal, data.party(k, "test"), stored.party(k, "test"))
    algorithm = rv.scaffold(rv.SGD(0.05, batch_size=4))
    participation = rv.participation.Uniform(2)
    on_device, on_host = (rv.simulate(algorithm, model(), d, rounds=3, participation=participation, memory=m,
                                      progress=False) for d, m in ((data, "device"), (stored, "host")))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), on_device.server_model,
                 on_host.server_model)


def test_packed_data_that_were_cut_are_refused(tmp_path):
    rv.write_packed(tmp_path / "packed", zip(*samples(), strict=True))
    files = sorted(p.name for p in (tmp_path / "packed").glob("*.npy"))
    assert files == ["checksums.npy", "lengths.npy", "x-0.npy", "x-1.npy", "x-2.npy", "y-0.npy", "y-1.npy"]
    path = tmp_path / "packed" / "x-1.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x-1\.npy: the rows .* are not what was written"):
        rv.open_packed(tmp_path / "packed").party(2, "test")


def test_without_labels_and_named_tuples():
    x = [Pair(np.full((4, 2), k), np.arange(4)) for k in range(2)]
    data = rv.FederatedData.from_arrays(x, test=0.25, validation=0)
    assert repr(data).endswith("inputs {first: [2], second: []}, structured, labels none)")
    assert data.y is None
    assert isinstance(data.party(1)[0], Pair)
    assert data.party(1)[1] is None
    assert data.is_in_memory
    assert join_splits(data).sizes().tolist() == [4, 4]
    again = resplit(data, seed=1)
    np.testing.assert_array_equal(again.data.x.second, data.x.second[again.rows])
    with pytest.raises(InputError, match=r"SampleLoss needs labels, and the data 'data' have none.*reconstruction"):
        rv.problems.LearningProblem(rv.models.from_functions(
            lambda key: jnp.zeros(2), lambda p, x: x.first @ p, loss=lambda out, y: out**2), data)


def test_digests_depend_on_every_leaf():
    data = rv.FederatedData.from_arrays(*samples())
    first = fingerprint_of(data)
    assert fingerprint_of(rv.FederatedData.from_arrays(*samples())) == first
    data.x["meta"]["age"][0] += 1
    assert fingerprint_of(data) != first


def change(part, path, value):
    x, y = samples()
    target = (x if part == "x" else y)[1]
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    return x, y


@pytest.mark.parametrize(("arguments", "message"), [
    (change("x", ["image"], np.zeros((3, 2, 2))), r"'party 1' has 14 inputs|'party 1' has 3 inputs"),
    (change("x", ["image"], np.full((14, 2, 2), np.nan)), r"'party 1', row 0: the input 'image' .* not finite"),
    (change("x", ["image"], np.zeros((14, 2, 3))), r"'party 1' has inputs 'image' of shape \(2, 3\)"),
    (change("x", ["other"], np.zeros(14)), r"'party 1' has inputs of another structure.*other"),
    (change("x", ["image"], np.full((14, 2, 2), "a")), r"inputs 'image' of type .*must be numbers"),
    (change("y", ["tags"], np.zeros((14, 3))), r"'party 1' has 14 inputs but labels 'tags' of shape \(14, 3\)"),
    (change("y", ["number"], 3.0), r"from_arrays\(y=\.\.\.\)\['number'\] has 3.0 for party 'party 1'"),
    (([{}], [[1]]), r"'party 0' has an empty structure"),
    (([{1: np.zeros(2)}], [[1, 2]]), r"a dict with the key 1: use texts"),
])
def test_wrong_structures_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        rv.FederatedData.from_arrays(*arguments)


def test_options_that_do_not_fit_a_structure_are_refused():
    x, y = samples()
    with pytest.raises(InputError, match=r"task='regression' needs one array of labels, and there are several"):
        rv.FederatedData.from_arrays(x, y, task="regression")
    with pytest.raises(InputError, match="a vocabulary is for inputs that are one array"):
        rv.FederatedData.from_arrays(x, y, vocabulary=("a",))
    with pytest.raises(InputError, match=r"class_weight: it is for classes.*for structured"):
        rv.FederatedData.from_arrays(x, y).with_class_weights("balanced")


def test_several_targets_are_a_regression_and_several_integers_are_not():
    x = [np.eye(4)] * 2
    data = rv.FederatedData.from_arrays(x, [np.ones((4, 2))] * 2)
    assert (data.task, data.outputs, data.label_shape) == ("regression", 2, (2,))
    data = rv.FederatedData.from_arrays(x, [np.ones((4, 3), int)] * 2, classes=["a", "b", "c"])
    assert (data.task, data.outputs, data.classes) == ("structured", 3, ("a", "b", "c"))


@pytest.mark.when_changed
def test_weights_of_samples_reach_a_structured_loss():
    x, y = samples()
    weights = [np.arange(1, 1 + len(part["image"])) for part in x]
    weighted = rv.FederatedData.from_arrays(x, y, validation=0, test=0, weights=weights)
    repeated = rv.FederatedData.from_arrays(
        *([jax.tree.map(lambda a, w=w: np.repeat(a, w, axis=0), part) for part, w in zip(values, weights, strict=True)]
          for values in (x, y)), validation=0, test=0)
    problems = [rv.problems.LearningProblem(model(), data) for data in (weighted, repeated)]
    w = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(0), leaf.shape), problems[0].init(None))
    totals = [sum(float(p.oracle(jnp.array(k)).value(w)) * int(n) for k, n in enumerate(p.sizes)) / int(sum(p.sizes))
              for p in problems]
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)


def test_sequences_are_padded():
    rows, mask = rv.datasets.pad_sequences([np.ones((2, 3)), np.ones((4, 3))], length=5, padding=-1)
    assert rows.shape == (2, 5, 3)
    assert mask.tolist() == [[True, True, False, False, False], [True, True, True, True, False]]
    assert (rows[~mask] == -1).all()
    with pytest.raises(InputError, match="a sequence has 4 elements, more than length=3"):
        rv.datasets.pad_sequences([[1, 2, 3, 4]], length=3)


def test_partitions_read_a_leaf_or_a_function():
    x, y = samples((60,))
    part = rv.partitions.Shards(parties=3, per_party=1, cut="sorted")
    by_leaf = rv.partitions.divide(x[0], y[0], part, by="meta.kind", test=0)
    by_function = rv.partitions.divide(x[0], y[0], part, by=lambda x, y: x["meta"]["kind"], test=0)
    of_array = part(x[0]["meta"]["kind"], 0)
    for k, rows in enumerate(of_array):
        kinds = [data.party(k)[0]["meta"]["kind"] for data in (by_leaf, by_function)]
        np.testing.assert_array_equal(*kinds)
        assert sorted(kinds[0]) == sorted(x[0]["meta"]["kind"][rows])
    assert by_leaf.task == "structured"
    assert len(rv.partitions.divide(x[0], None, rv.partitions.IID(4))) == 4  # which reads no labels
    with pytest.raises(InputError, match=r"Dirichlet distributes samples by one label.*set by"):
        rv.partitions.divide(x[0], y[0], rv.partitions.Dirichlet(2))
    with pytest.raises(InputError, match=r"there is no array 'y\.number_'.*did you mean 'y\.number'"):
        rv.partitions.divide(x[0], y[0], part, by="y.number_")
    with pytest.raises(InputError, match=r"has the shape \(60, 2\) for 60 samples"):
        rv.partitions.divide(x[0], y[0], part, by="tags")


def test_a_shift_changes_one_input():
    data = rv.FederatedData.from_arrays(*samples())
    shifted = rv.shifts.OnInput(rv.shifts.Negative(0.34), "image")(data, seed=0)
    np.testing.assert_allclose(shifted.party(2)[0]["image"], 1 - data.party(2)[0]["image"])
    np.testing.assert_array_equal(shifted.party(0)[0]["image"], data.party(0)[0]["image"])
    np.testing.assert_array_equal(shifted.x["meta"]["age"], data.x["meta"]["age"])
    with pytest.raises(InputError, match=r"one array in memory: use OnInput"):
        rv.shifts.Negative()(data, seed=0)
    with pytest.raises(InputError, match=r"there is no such input; there are image, meta\.age, meta\.kind"):
        rv.shifts.OnInput(rv.shifts.Negative(), "picture")(data, seed=0)
