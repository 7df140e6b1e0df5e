"""Messages as bytes: what is sent arrives unchanged, and everything else is refused with a ``WireError``."""

import json
import tracemalloc
from contextlib import suppress

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import resolvent as rv
from federation.mutations import mutated, resealed
from resolvent.federation.protocol.server_messages import model_messages, work_messages
from resolvent.federation.protocol.stores import PartyRecord, PartyStore, ServerRecord
from resolvent.federation.protocol.wire import (
    EncodedMessage,
    Message,
    WireError,
    arrays_of,
    decode,
    encode,
    head_of_message,
    identity_of_message,
    restore_tree,
    share_equal,
    size_of,
)

TREE = {"w": np.arange(6.0, dtype=np.float32).reshape(2, 3), "half": np.ones(3, ml_dtypes.bfloat16),
        "empty": np.zeros((0, 2)), "scalar": np.float64(0.1), "count": np.int32(3), "flag": np.bool_(True),
        "pair": (np.float16([1.5]), np.uint32([1, 2]))}


def test_a_tree_arrives_with_its_dtypes_and_shapes():
    message = Message("reply", "run", 3, 1, {"answers": "x", "numbers": [1, 0.1, None]}, arrays_of(TREE))
    again = decode(encode(message))
    assert (again.kind, again.run, again.round, again.phase, again.facts) == ("reply", "run", 3, 1, message.facts)
    tree = restore_tree(again.arrays, TREE)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(TREE), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
    assert sum(size_of(jax.tree.map(np.asarray, TREE)).values()) == sum(leaf.nbytes for leaf in jax.tree.leaves(TREE))


@pytest.mark.parametrize("codec", [rv.codecs.QSGD(), rv.codecs.TopK(k=2)], ids=repr)
def test_an_encoded_vector_travels_packed(codec):
    x = {"a": jnp.arange(50.0), "b": jnp.ones((2, 3))}
    wire = codec.encode(x, jax.random.key(0))
    arrays = arrays_of((wire, jnp.ones(1)))
    assert arrays["0.packed"].nbytes == -(-codec.bits(x) // 8)
    like = jax.eval_shape(lambda: (codec.encode(x, jax.random.key(0)), jnp.ones(1)))
    again, _ = restore_tree(decode(encode(Message("reply", "run", arrays=arrays))).arrays, like)
    np.testing.assert_array_equal(again.decoded()["a"], wire.decoded()["a"])


def test_bytes_are_the_same_for_the_same_message():
    """So that a message that is written again is the same message. The order of facts, such as columns, is kept."""
    facts = {"b": 2, "a": {"d": 3, "c": 4}}
    first = encode(Message("work", "run", facts=facts, arrays=arrays_of(TREE)))
    read = decode(first)
    assert list(read.facts) == ["b", "a"]
    assert list(read.facts["a"]) == ["d", "c"]
    again = encode(Message("work", "run", facts=read.facts, arrays=read.arrays))
    assert again == first
    assert identity_of_message(again) == identity_of_message(first)


def test_an_array_of_zeros_travels_as_its_shape_and_keeps_its_bits():
    """MARINA sends one of two parts in a round, and sets the other one to zero."""
    arrays = {"zero": np.zeros((50, 40), np.float32), "minus": np.full((50, 40), -0.0, np.float32), "none": np.zeros(0),
              "late": np.arange(2000)}
    data = encode(Message("reply", "run", arrays=arrays))
    assert len(data) < 1000 + arrays["minus"].nbytes + arrays["late"].nbytes
    for name, array in decode(data).arrays.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            arrays[name].dtype, arrays[name].shape, arrays[name].tobytes())
    limit = len(data) + arrays["zero"].nbytes
    assert decode(data, limit).arrays.keys() == arrays.keys()
    with pytest.raises(WireError, match="the arrays are larger than allowed"):
        decode(data, limit - 1)


def test_an_array_with_the_content_of_another_one_travels_once():
    """The personal model of FedAvg is its shared model."""
    model = np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32)
    other = model.copy()
    other[-1, -1] += 1
    arrays = {"personal": model, "shared": model.copy(), "other": other, "flat": model.reshape(-1)}
    data = encode(Message("evaluate", "run", arrays=arrays))
    assert len(data) < 3 * model.nbytes + 1000
    for name, array in decode(data).arrays.items():
        np.testing.assert_array_equal(array, arrays[name], strict=True)


def peak_memory(operation):
    """The largest memory that an operation allocates, in bytes; ``operation`` returns what stays."""
    tracemalloc.start()
    try:
        result = operation()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_messages_and_records_are_copied_once_at_most(tmp_path):
    """A message as bytes is one copy of its arrays; reading it, and writing and reading a record, make none."""
    state = {"w": np.ones(2**20, np.float32), "b": np.ones(2**18, np.float64)}
    size = sum(leaf.nbytes for leaf in state.values())
    largest, data = peak_memory(lambda: encode(Message("work", "run", arrays=arrays_of(state))))
    assert size < largest < 1.1 * size
    assert peak_memory(lambda: decode(data))[0] < 0.1 * size
    with PartyStore(tmp_path / "run") as store:
        record = PartyRecord("run", "start", state, 3, 0, "message", state)
        assert peak_memory(lambda: store.write(record, data))[0] < 0.1 * size
        assert peak_memory(store.read_reply)[0] < 1.1 * len(data)
        assert store.read_reply() == data


def test_messages_to_many_parties_have_one_copy_of_the_equal_arrays():
    """Bytes and checksum are those of ``encode``; only the bits decide whether an array is shared."""
    model, rare = np.ones(2**20, np.float32), {"w": -np.zeros(300), "b": np.full(300, np.nan)}

    def write():
        known, messages = {}, {}
        for name in "0123456789":
            arrays = {"model": model.copy(), "own": np.full(300, float(name)), **{n: a.copy() for n, a in rare.items()}}
            arrays = share_equal(arrays, known)
            known = arrays | known
            messages[name] = EncodedMessage(Message("work", "run", 3, 1, {"party": name}, arrays))
        return messages

    largest, messages = peak_memory(write)
    assert largest < 2.1 * model.nbytes
    for name, message in messages.items():
        arrays = {"model": model, "own": np.full(300, float(name)), **rare}
        assert bytes(message) == encode(Message("work", "run", 3, 1, {"party": name}, arrays))
        assert message.size == len(bytes(message))
        assert message.head == head_of_message(bytes(message))
    others = {"model": model.astype(np.int32), "w": np.zeros(300), "b": np.full(299, np.nan)}
    shared = share_equal(others, {"model": model, **rare})
    assert all(shared[name] is others[name] for name in others)


def test_messages_with_the_model_of_the_state_have_no_copy_of_it():
    """The personal model of FedAvg is its shared model, which is the server's state."""
    algorithm = rv.fedavg(rv.solvers.SGD(0.1))
    state = algorithm.init(jnp.arange(300.0), jnp.ones(2))
    record = ServerRecord("run", ("a", "b"), {}, (1, 1), (), (), "", state)
    (model,) = (np.asarray(leaf) for leaf in jax.tree.leaves(state) if jnp.shape(leaf) == (300,))
    (work,) = work_messages(algorithm, record, {1: 1.0}, jax.random.key(0)).values()
    (evaluate,) = model_messages("evaluate", algorithm, record, [1]).values()
    for message, names in ((work, ["payload"]), (evaluate, ["payload", "shared"])):
        arrays = decode(bytes(message)).arrays
        assert [name for name in arrays if arrays[name].shape == (300,)] == names
        assert all(np.array_equal(arrays[name], model) for name in names)
        assert sum(np.shares_memory(np.asarray(part), model) for part in message.parts) == 1
    assert evaluate.size < 1.5 * model.nbytes


WRONG_TREES = {
    "shape": ({"w": np.zeros((3, 2), np.float32)}, r"is float32\[3, 2\], expected float32\[2, 3\]"),
    "dtype": ({"w": np.zeros((2, 3))}, r"is float64\[2, 3\], expected float32\[2, 3\]"),
    "name": ({"v": np.zeros((2, 3), np.float32)}, "no array 'w'"),
    "extra": ({"w": np.zeros((2, 3), np.float32), "z": np.zeros(1)}, "not expected, 'z'"),
}


@pytest.mark.parametrize("case", WRONG_TREES)
def test_another_structure_is_refused(case):
    tree, reason = WRONG_TREES[case]
    with pytest.raises(WireError, match=reason):
        restore_tree(arrays_of(tree), {"w": TREE["w"]})


VALID = encode(Message("reply", "run", 3, 1, {"answers": "x"}, arrays_of(TREE)))
HEADER = {"version": 2, "kind": "reply", "run": "", "round": 0, "phase": 0, "facts": {}, "zeros": {}, "same": {}}
WRONG_HEADERS = {
    "no JSON": b"{",
    "not an object": b"[]",
    "nested too deeply": b"[" * 100_000,
    "another version": json.dumps({**HEADER, "version": 3}).encode(),
    "a negative round": json.dumps({**HEADER, "round": -1}).encode(),
    "a round that is no number": json.dumps({**HEADER, "round": True}).encode(),
    "no facts": json.dumps({**HEADER, "facts": None}).encode(),
    "zeros of a negative size": json.dumps({**HEADER, "zeros": {"w": {"dtype": "F32", "shape": [-1]}}}).encode(),
    "zeros of an unknown type": json.dumps({**HEADER, "zeros": {"w": {"dtype": [], "shape": [1]}}}).encode(),
    "the content of an array that is not there": json.dumps({**HEADER, "same": {"w": "x"}}).encode(),
    "zeros without an end": json.dumps({**HEADER, "zeros": {"w": {"dtype": "F32", "shape": [2**40]}}}).encode(),
}


def test_a_header_without_zero_and_repeated_arrays_is_read():
    """As in the records of earlier versions."""
    header = {name: value for name, value in HEADER.items() if name not in ("zeros", "same")}
    assert {*decode(resealed(VALID, header=json.dumps(header).encode())).arrays} <= {*arrays_of(TREE)}


@pytest.mark.parametrize("case", WRONG_HEADERS)
def test_a_wrong_header_is_refused(case):
    with pytest.raises(WireError):
        decode(resealed(VALID, header=WRONG_HEADERS[case]))


@pytest.mark.parametrize("data", [b"", b"RSLVMSG1", VALID[:-1], VALID[:50], VALID + b"x", "text", None, VALID[1:]],
                         ids=str)
def test_what_is_no_whole_message_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


def test_a_message_that_is_too_large_is_refused_before_it_is_read():
    with pytest.raises(WireError, match=f"has {len(VALID)} bytes, at most 100 are allowed"):
        decode(VALID, limit=100)


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(1, 20))])
def test_mutated_bytes_are_refused(seed):
    random = np.random.default_rng(seed)
    for _ in range(500):
        data = mutated(VALID, random)
        with pytest.raises(WireError):
            decode(data)
        with suppress(WireError):  # with a correct checksum, as of an attacker: refused or read, and nothing else
            restore_tree(decode(resealed(mutated(VALID, random, keep=40))).arrays, TREE)
