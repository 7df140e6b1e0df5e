"""The wire format: a message is a checksum, a JSON header and named arrays. It never contains code.

.. code-block:: text

    bytes   content
    8       "RSLVMSG1"
    32      SHA-256 of all following bytes
    ...     a safetensors file: its metadata has the header as JSON, its tensors are the arrays

Of an array whose bits are all zero, only the dtype and the shape travel, in the header. Methods whose replies have
alternating parts, such as MARINA, set the unused part to zero. Of an array with the content of another one, only the
name of the other one travels: the personal model of FedAvg is its shared model. A codec's encoded vector travels as
ceil(bits / 8) bytes (``math.packing``).

The checksum detects damage, not an attacker, who can compute a new one. Against attackers the transport encrypts and
authenticates, and both sides check every message: its size, its header, and the names, shapes and dtypes of its arrays
against those that they expect.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.errors import InputError, quote, shorten
from resolvent.math.codecs import Wire
from resolvent.math.packing import pack_wire, packed_size, unpack_wire
from resolvent.simulator.storage.tree_files import FILE_NAMES, NUMPY_NAMES

MAX_BYTES = 2**32
_MAGIC = b"RSLVMSG1"
_CONTENT = len(_MAGIC) + hashlib.sha256().digest_size
_MAX_HEADER = 2**24
_LENGTH_BYTES = 8
_MAX_NUMBER = 2**31
_SAMPLE = 64  # bytes that are read first, because arrays mostly differ there from zero and from each other
_MIN_REPEATED = 256  # bytes; the entry of an array in the header has about 100
_BLOCK = 2**16
_VERSION = 2


class WireError(InputError):
    """A message is damaged, too large, or not the expected one."""


@dataclass(frozen=True)
class Message:
    """A message between the server and a party, in either direction.

    Attributes:
        kind: about a plan ``describe``, ``prepare`` or ``finish``, each with an ``answer``; in the rounds of a method
            ``start``, ``work``, ``evaluate`` or ``finish`` from the server, and ``ready``, ``reply``, ``scores`` or
            ``stored`` from a party; from a site also ``refusal``.
        run: the run of the plan, or of one of its methods (``run_of_method``).
        round: number of the round.
        phase: number of the phase.
        facts: values that JSON can hold.
        arrays: name -> array.
        identity: of a message that was read, its checksum: equal bytes are the same message, however often they arrive.
    """

    kind: str
    run: str
    round: int = 0
    phase: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    identity: str = ""

    def fact(self, name: str, kind: type) -> Any:
        """A fact of an expected type.

        Raises:
            WireError: it is missing or of another type.
        """
        value = self.facts.get(name)
        if type(value) is not kind:  # not isinstance: True is not a number here
            raise WireError(f"the message '{self.kind}' has {quote(value)} for {name}")
        return value

    def tree(self, like: PyTree[Any]) -> PyTree[Any]:
        """The tree whose arrays the message has, see ``restore_tree``."""
        return restore_tree(self.arrays, like)

    def answer(self, kind: str, site: str, facts: Mapping[str, Any] = MappingProxyType({}),
               arrays: Mapping[str, NDArray[Any]] = MappingProxyType({})) -> bytes:
        """The bytes of the answer of a site to this message, which the answer names by its identity."""
        return encode(Message(kind, self.run, self.round, self.phase,
                              {"answers": self.identity, "party": site, **facts}, arrays))


def encode(message: Message) -> bytes:
    """The message as bytes.

    Example:
        >>> data = encode(Message("reply", "run 1", 3, arrays={"w": np.ones(2, np.float32)}))
        >>> decode(data).arrays["w"].tolist()
        [1.0, 1.0]
    """
    return b"".join(encode_parts(message))


def encode_parts(message: Message) -> list[bytes | memoryview]:
    """The message as parts that follow each other: the checksum, the header, and a view of each array, not a copy."""
    header = {"version": _VERSION, "kind": message.kind, "run": message.run, "round": message.round,
              "phase": message.phase, "facts": dict(message.facts)}
    arrays = {name: np.asarray(array, order="C") for name, array in message.arrays.items()}
    zeros = {name for name, array in arrays.items() if _is_zero(array)}
    header["zeros"] = {name: _description(arrays.pop(name)) for name in sorted(zeros)}
    header["same"] = repeated = _repeated(arrays)
    arrays = {name: array for name, array in arrays.items() if name not in repeated}
    parts = _safetensors_parts(arrays, {"header": json.dumps(header, allow_nan=False)})
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return [_MAGIC + checksum.digest(), *parts]


def _description(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": FILE_NAMES[array.dtype.name], "shape": list(array.shape)}


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)


def _is_zero(array: NDArray[Any]) -> bool:
    """Whether all bits are zero. -0.0 is not, so that an array that is restored has the same bits."""
    content = _bytes_of(array)
    return not content[:_SAMPLE].any() and not content.any()


def _repeated(arrays: Mapping[str, NDArray[Any]]) -> dict[str, str]:
    """Name of an array that has the dtype, the shape and the bits of an earlier one -> name of the earlier one."""
    firsts: dict[tuple[Any, ...], list[str]] = {}
    repeated = {}
    for name, array in sorted(arrays.items()):
        if array.nbytes < _MIN_REPEATED:
            continue
        content = _bytes_of(array)
        alike = firsts.setdefault((array.dtype.name, array.shape, content[:_SAMPLE].tobytes()), [])
        first = next((other for other in alike if _is_equal(_bytes_of(arrays[other]), content)), None)
        if first is None:
            alike.append(name)
        else:
            repeated[name] = first
    return repeated


def share_equal(arrays: Mapping[str, NDArray[Any]], others: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Arrays by name, without memory of their own if they have the bits of one of ``others`` or of each other."""
    known = {**{f" {name}": array for name, array in others.items()}, **arrays}  # a space comes before all names
    repeated = _repeated(known)
    return {name: known[repeated.get(name, name)] for name in arrays}


def _is_equal(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> bool:
    """Whether two arrays of equal size have the same bytes. Blocks need no memory for a comparison of each byte."""
    return a.ctypes.data == b.ctypes.data or all(
        np.array_equal(a[i:i + _BLOCK], b[i:i + _BLOCK]) for i in range(0, len(a), _BLOCK))


def _safetensors_parts(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """A safetensors file as parts. The library's own writer holds two copies of all arrays."""
    # Arrays of wider numbers come first, as the library orders them, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    tensors, views, end = {}, [], 0
    for name in names:
        array = arrays[name]
        views.append(_bytes_of(array).data)
        tensors[name] = {**_description(array), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    header = json.dumps({"__metadata__": dict(metadata), **tensors}).encode()
    header += b" " * (-len(header) % _LENGTH_BYTES)
    return [len(header).to_bytes(_LENGTH_BYTES, "little") + header, *views]


def identity_of_message(data: bytes | memoryview) -> str:
    """The checksum of a message, which identifies it: equal bytes are the same message, however often they arrive."""
    return data[len(_MAGIC):_CONTENT].hex()


def digest_of_reply(reply: bytes | memoryview) -> str:
    """What identifies the bytes of a reply, also if they are no message."""
    return identity_of_message(reply) if reply[:len(_MAGIC)] == _MAGIC else hashlib.sha256(reply).hexdigest()


def refusal_code(reply: bytes | memoryview) -> str | None:
    """The code with which a site refuses, as it has arrived; None if the reply is no refusal, or cannot be read."""
    try:
        head = head_of_message(reply)
    except WireError:
        return None
    code = head.facts.get("code")
    return code if head.kind == "refusal" and isinstance(code, str) else None


def decode(data: bytes | memoryview, limit: int = MAX_BYTES) -> Message:
    """Read a message from bytes. Its arrays are views of the bytes, not copies.

    Args:
        data: the bytes.
        limit: largest number of bytes.

    Raises:
        WireError: the bytes are not a whole and undamaged message.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise WireError(f"a message must be bytes, got {type(data).__name__}")
    if len(data) > limit:
        raise WireError(f"the message has {len(data)} bytes, at most {limit} are allowed")
    if data[:len(_MAGIC)] != _MAGIC:
        raise WireError("the bytes are not a message of this version of resolvent")
    content = memoryview(data)[_CONTENT:]
    if hashlib.sha256(content).digest() != data[len(_MAGIC):_CONTENT]:
        raise WireError("the message is damaged or truncated: its checksum is not the one with which it was sent")
    tensors, header, start = _read_header(content)
    try:
        arrays = {name: _as_array(tensor, content[start:]) for name, tensor in tensors.items()}
        arrays |= _zero_arrays(header["zeros"], limit - len(data))
        arrays |= {name: arrays[first] for name, first in header["same"].items()}
    except (ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        raise WireError(f"the arrays of the message cannot be read: {shorten(error)}") from error
    return Message(header["kind"], header["run"], header["round"], header["phase"], header["facts"], arrays,
                   identity_of_message(data))


def checked_kind(message: Message, kind: str) -> Message:
    """An answer, if it is of the expected kind."""
    if message.kind != kind:
        raise WireError(f"the answer is not of the kind '{kind}'")
    return message


def head_of_message(data: bytes | memoryview) -> Message:
    """A message without its arrays. The checksum and the arrays are not read."""
    if data[:len(_MAGIC)] != _MAGIC:
        raise WireError("the bytes are not a message of this version of resolvent")
    _, header, _ = _read_header(memoryview(data)[_CONTENT:])
    return Message(header["kind"], header["run"], header["round"], header["phase"], header["facts"],
                   identity=identity_of_message(data))


def _read_header(content: memoryview) -> tuple[dict[str, Any], dict[str, Any], int]:
    """The description of the tensors, the message's header, and the offset of the data."""
    length = int.from_bytes(content[:_LENGTH_BYTES], "little")
    if length > min(_MAX_HEADER, len(content) - _LENGTH_BYTES):
        raise WireError(f"the header of the message has {length} bytes, more than the message or than {_MAX_HEADER}")
    try:
        outer = json.loads(bytes(content[_LENGTH_BYTES:_LENGTH_BYTES + length]))
        header = {"zeros": {}, "same": {}, **json.loads(outer.pop("__metadata__")["header"])}
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise WireError(f"the header of the message cannot be read: {shorten(error)}") from error
    types = {"version": int, "kind": str, "run": str, "round": int, "phase": int, "facts": dict, "zeros": dict,
             "same": dict}
    if not isinstance(header, dict) or any(type(header.get(name)) is not kind for name, kind in types.items()):
        raise WireError("the header of the message does not have the expected fields")
    if header["version"] != _VERSION:
        raise WireError(f"the message has version {header['version']} of the format, this is version {_VERSION}: "
                        "install the same version of resolvent at the server and at the sites")
    if not all(0 <= header[name] < _MAX_NUMBER for name in ("round", "phase")):
        raise WireError(f"the message has round {header['round']} and phase {header['phase']}")
    return outer, header, _LENGTH_BYTES + length


def _as_array(tensor: Mapping[str, Any], data: memoryview) -> NDArray[Any]:
    """A view of the bytes of one tensor: the library's own reader copies all bytes twice."""
    dtype, shape, (start, stop) = np.dtype(NUMPY_NAMES[tensor["dtype"]]), tensor["shape"], tensor["data_offsets"]
    if not all(type(n) is int and n >= 0 for n in (start, stop, *shape)) or not start <= stop <= len(data):
        raise ValueError("an offset or a shape is not valid")
    if stop - start != math.prod(shape) * dtype.itemsize:
        raise ValueError("the size of an array is not that of its shape")
    return np.ndarray(tuple(shape), dtype, data[start:stop])


def _zero_arrays(descriptions: Mapping[str, Any], limit: int) -> dict[str, NDArray[Any]]:
    """The arrays whose bits are all zero. Their sizes count as if they had travelled."""
    arrays = {}
    for name, description in descriptions.items():
        dtype, shape = np.dtype(NUMPY_NAMES[description["dtype"]]), description["shape"]
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError("a shape is not valid")
        limit -= math.prod(shape) * dtype.itemsize
        if limit < 0:
            raise ValueError("the arrays are larger than allowed")
        arrays[name] = np.zeros(tuple(shape), dtype)
    return arrays


def arrays_of(tree: PyTree[Any], prefix: str = "") -> dict[str, NDArray[Any]]:
    """The arrays of a tree by name, as they travel; encoded vectors are packed. All names begin with ``prefix``.

    Raises:
        InputError: two arrays have the same name.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, part in _named_parts(tree):
        for suffix, value in _pieces(part).items():
            if prefix + name + suffix in arrays:
                raise InputError(f"two arrays of a message have the name {name + suffix!r}: rename a key that has a "
                                 "dot in it")
            arrays[prefix + name + suffix] = value
    return arrays


def restore_tree(arrays: Mapping[str, NDArray[Any]], like: PyTree[Any]) -> PyTree[Any]:
    """The tree whose arrays ``arrays_of`` returned.

    Args:
        arrays: name -> array.
        like: a tree of the expected structure, whose leaves have the expected shapes and dtypes.

    Raises:
        WireError: a name, a shape or a dtype is not the expected one, or an encoded vector is not valid.
    """
    parts, used = [], set()
    for name, part in _named_parts(like):
        expected = _expected_pieces(part)
        values = {}
        for suffix, (shape, dtype) in expected.items():
            value = arrays.get(name + suffix)
            if value is None:
                raise WireError(f"the message has no array {quote(name + suffix)}")
            if value.shape != shape or value.dtype != dtype:
                raise WireError(f"the array {quote(name + suffix)} is {value.dtype}{list(value.shape)}, expected "
                                f"{dtype}{list(shape)}")
            values[suffix] = value
        used |= {name + suffix for suffix in expected}
        parts.append(_assembled(name, part, values))
    if len(arrays) > len(used):
        extra = sorted(set(arrays) - used)
        raise WireError(f"the message has an array that is not expected, {quote(extra[0])}")
    return jax.tree.unflatten(jax.tree.structure(like, is_leaf=_is_wire), parts)


def size_of(like: PyTree[Any]) -> dict[str, int]:
    """Name -> number of bytes of each array of a tree, from the shapes."""
    return {name + suffix: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            for name, part in _named_parts(like) for suffix, (shape, dtype) in _expected_pieces(part).items()}


def _is_wire(part: Any) -> bool:
    return isinstance(part, Wire)


def _named_parts(tree: PyTree[Any]) -> list[tuple[str, Any]]:
    return [(jax.tree_util.keystr(path, simple=True, separator=".") or "value", part)
            for path, part in jax.tree_util.tree_leaves_with_path(tree, is_leaf=_is_wire)]


def _pieces(part: Any) -> dict[str, NDArray[Any]]:
    """The arrays of a leaf or of an encoded vector, by the ending of their name."""
    if not isinstance(part, Wire):
        return {"": np.asarray(part)}
    codec = {f".codec.{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(part.codec))}
    return {".packed": pack_wire(part), ".finite": np.asarray(part.is_finite), **codec}


def _expected_pieces(part: Any) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    if not isinstance(part, Wire):
        return {"": (tuple(part.shape), np.dtype(part.dtype))}
    codec = {f".codec.{i}": (tuple(leaf.shape), np.dtype(leaf.dtype))
             for i, leaf in enumerate(jax.tree.leaves(part.codec))}
    return {".packed": ((packed_size(part),), np.dtype(np.uint8)), ".finite": ((), np.dtype(bool)), **codec}


def _assembled(name: str, part: Any, values: Mapping[str, NDArray[Any]]) -> Any:
    if not isinstance(part, Wire):
        return values[""]
    try:
        wire = unpack_wire(values[".packed"], bool(values[".finite"]), part)
    except ValueError as error:
        raise WireError(f"the encoded vector {quote(name)} is not valid: {shorten(error)}") from error
    leaves = [values[f".codec.{i}"] for i in range(len(jax.tree.leaves(part.codec)))]
    codec = jax.tree.unflatten(jax.tree.structure(part.codec), leaves)
    return Wire(codec, wire.content, wire.is_finite, wire.structure, wire.leaves, wire.bits)


def with_weak_scalars(tree: PyTree[Any], like: PyTree[Any]) -> PyTree[Any]:
    """The tree with Python numbers for weakly typed scalars, so that JAX promotes dtypes as in a simulation."""
    def leaf(value: Any, shape: Any) -> Any:
        return value.item() if getattr(shape, "weak_type", False) and np.shape(value) == () else value

    return jax.tree.map(leaf, tree, like)


def has_valid_numbers(tree: PyTree[Any]) -> bool:
    """Whether a message has no nan, and no infinite number in an array.

    A scalar may be infinite, as the best residual of a safeguard is before the first round.
    """
    leaves = [leaf for leaf in map(np.asarray, jax.tree.leaves(tree)) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(not np.isnan(leaf) if leaf.ndim == 0 else np.isfinite(leaf).all() for leaf in leaves)


class EncodedMessage:
    """A message as parts that follow each other; ``bytes(encoded)`` joins them. Arrays are views, not copies.

    Attributes:
        head: the message without its arrays, and with its identity.
        parts: the checksum, the header, and each array.
        size: number of bytes.
    """

    def __init__(self, message: Message) -> None:
        self.parts = encode_parts(message)
        self.head = replace(message, arrays={}, identity=identity_of_message(self.parts[0]))
        self.size = sum(map(len, self.parts))

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)


def messages_to(facts: Mapping[str, Mapping[str, Any]], kind: str, run: str, round: int = 0,
                phase: int = 0) -> dict[str, EncodedMessage]:
    """Name of a party -> its message without arrays, from the facts for each."""
    return {party: EncodedMessage(Message(kind, run, round, phase, {"party": party, **of_party}))
            for party, of_party in facts.items()}
