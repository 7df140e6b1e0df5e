"""Sites with certificates that a test makes, and one phase of a secure sum between them."""

from typing import ClassVar

import jax
import numpy as np

from federation.harness import EXPERIMENT
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.wire import decode
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.secure.rules import Sent, SumRules
from resolvent.federation.secure.server import SecureSum, VoidSumError
from resolvent.federation.secure.site import SecureSite

RUN = "run/0/digest of the plan"
NAMES = ("Aarhus", "Basel", "Cork", "Delft", "Evora")


def sites_of(folder, count=5, rules=None, accept=True):
    """Sites that have accepted each other's cards; started again, they continue."""
    names = NAMES[:count]
    identities = local_identities(names)
    sites = {name: SecureSite(name, RUN, folder / name, identities[name], rules or SumRules(), names)
             for name in names}
    if accept:
        cards = cards_of(sites)
        for site in sites.values():
            site.accept(cards)
    return sites


def sent(content):
    """What all sites were sent."""
    return Sent(content, content)


def cards_of(sites):
    """The card of each site."""
    return {name: site.card() for name, site in sites.items()}


def vectors_of(names, count=6, dtype="<u8", seed=0):
    """A reply of integers for each site."""
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 2**32, count, dtype=np.uint64).astype(dtype) * np.array(2**31 + 1, dtype)
            for name in names}


def secure_sum(sites, position, vectors, *, asked=None, message="w0", silent=((), (), ()), rules=None, between=None,
               cards=None):
    """A phase: the sites of ``silent`` do not answer the work, the list, and the last step.

    Returns:
        The listed sites, and the sum; None if the phase has no effect.
    """
    rules, between = rules or SumRules(), between or (lambda sites, step: sites)
    asked = sorted(asked or sites)
    total = SecureSum(RUN, position, asked, rules, cards or cards_of(sites))
    for name in asked:
        if name not in silent[0]:
            vector = vectors[name]
            mask = sites[name].mask(position, asked, sent(message), len(vector), vector.dtype.str)
            total.add(name, vector + mask.values, mask.shares, mask.commitment, sent(message).shared)
    sites = between(sites, "masked")
    if not total.has_enough_sites:
        return total.listed, None
    for name in total.listed:
        if name not in silent[1]:
            assert total.accept_signature(name, sites[name].sign(position, total.listed))
    sites = between(sites, "signed")
    if not total.has_enough_signatures:
        return total.listed, None
    revealed = {name: sites[name].reveal(position, total.listed, total.signatures, total.shares_for(name))
                for name in total.listed if name not in silent[2]}
    between(sites, "revealed")
    try:
        return total.listed, total.unmask(revealed)
    except VoidSumError:
        return total.listed, None


SECURE = EXPERIMENT.replace("label: ill", "label: ill, levels: {ill: [no, yes], ward: [east, west]}") + """
privacy: {secure_sums: true, min_sites: 2, threshold: 0.5}
"""


def same(a, b):
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes()
               for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


class Recorder(InProcess):
    """A transport that keeps what passes, and loses the messages of a kind to some sites."""

    messages: ClassVar[list] = []
    lost: ClassVar[dict] = {}

    def broadcast(self, messages, **times):
        replies = {}
        for name, message in ((name, bytes(message)) for name, message in messages.items()):
            head = decode(message)
            if (head.kind, head.round) in self.lost.get(name, ()):
                continue
            replies[name] = self.handlers[name](message)
            Recorder.messages.append((name, head, decode(replies[name])))
        return replies
