"""How the steps of secure sums travel in the messages of the rounds, and replies as vectors.

.. code-block:: text

    ready    card of the site                            roster   cards of all sites             -> accepted
    work     asked sites                                 -> reply: masked integers, sealed shares, commitment
    evaluate, sum    the same, for the mean scores of a model, and for numbers of the table
    list     sites whose replies arrived                 -> signed: signature
    reveal   list, its signatures, shares for this site  -> revealed: own seed, shares, seeds of common masks
"""

import hashlib
import json
import math
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree
from numpy.typing import NDArray

from resolvent.algorithms.combinators.fixed_point_sums import IntegerReply
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.rules import Position, Sent
from resolvent.simulator.storage.tree_files import digest

MASKED = "masked"
_OWN_FACTS, _OWN_ARRAYS = ("party", "counted", "refused"), ("key", "effort")
SUM_KINDS = {"roster": "accepted", "list": "signed", "reveal": "revealed"}
"""Kind of a message -> kind of the answer."""


def position_of(message: Message) -> Position:
    """The sum to which a message belongs: before the phases of a round comes the evaluation of the models.

    Raises:
        Refusal: an evaluation names a phase: its scores would have the mask of the reply of that phase.
    """
    if message.kind == "evaluate" and message.phase:
        raise Refusal(RefusalCode.SUM, f"an evaluation has no phase, and the message has {message.phase}")
    return message.round, message.phase + (message.kind == "work")


def integers_of(reply: IntegerReply) -> NDArray[np.unsignedinteger]:
    """[n] the integers of a reply and its weight, of 32 or 64 bits."""
    if not np.isfinite(np.asarray(reply.check)):
        raise Refusal(RefusalCode.RANGE, "a number of the reply is not finite, or beyond the range of the integers")
    leaves = [np.ascontiguousarray(leaf) for leaf in jax.tree.leaves((reply.words, reply.weight))]
    return np.concatenate([leaf.reshape(-1) for leaf in leaves]).view(f"<u{4 * leaves[-1].shape[-1]}")


def reply_of_integers(integers: NDArray[np.unsignedinteger], like: IntegerReply) -> IntegerReply:
    """The reply of ``integers_of``, with one row: leaves [1, ...].

    Args:
        integers: [n] such as a sum of replies.
    """
    words, parts, start = integers.view("<u4"), [], 0
    shapes, structure = jax.tree.flatten((like.words, like.weight))
    for shape in shapes:
        size = math.prod(shape.shape)
        parts.append(words[start:start + size].reshape(1, *shape.shape))
        start += size
    of_words, weight = jax.tree.unflatten(structure, parts)
    zeros = jax.tree.map(lambda leaf: np.zeros((1, *leaf.shape), leaf.dtype), (like.kinds, like.check))
    return IntegerReply(of_words, weight, *zeros)


def count_of(like: PyTree[Any]) -> int:
    """Number of integers of ``integers_of``, from the shapes of a reply."""
    leaves = jax.tree.leaves((like.words, like.weight))
    words = sum(int(math.prod(leaf.shape)) for leaf in leaves)
    return words // int(leaves[-1].shape[-1])


def shared_digest(message: Message) -> str:
    """The digest of what all sites of a sum have in common in a message: kind, run, sum, facts and arrays.

    Of a site alone are its name, its key and its effort, which the plan states, and which of its replies counted, which
    chooses between two states that the site has computed itself.
    """
    facts = {name: value for name, value in message.facts.items() if name not in _OWN_FACTS}
    arrays = digest({name: array for name, array in message.arrays.items() if name not in _OWN_ARRAYS})
    content = [message.kind, message.run, message.round, message.phase, facts, arrays]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def sent_in(message: Message) -> Sent:
    """What the server sent; its payload is without keys and efforts, which differ by round."""
    payload = {name: array for name, array in message.arrays.items() if name.startswith("payload")}
    return Sent(digest(payload)[:32], shared_digest(message))
