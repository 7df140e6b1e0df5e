"""A site's side of secure sums. It enforces the rules of its protocol whatever the server says.

.. code-block:: text

    once a run   card: public keys, signed with the certificate     accept: the cards of all sites, checked
    each phase   mask:   masked = reply + own mask + sum of +/- the masks with the other asked sites (mod 2^bits);
                         shares of the own mask's seed for the others, sealed
                 sign:   the list of the sites that are in the sum; one list for a phase, forever
                 reveal: with enough signatures on this list: the own seed, the shares of the listed sites' seeds,
                         and for each site that is not listed the seed of the common mask of this phase

What is revealed about a site is either about its own mask or about its common masks, never both, so that its reply
stays hidden: if it is listed, its common masks cancel in the sum only; if it is not, no one else has its own mask.

If all asked sites must be in the sum (``SumRules.needs_all``), nothing is ever revealed: there are no own masks, and
the common ones cancel in the sum of all replies. So there is no step after the replies.

**The masks bind the content.** The common mask of two sites is derived from the run, the sum and the digest of all that
the sites have in common in the message (``answers.shared_digest``). Let q_k be the replies and p_kl(c) the common mask
of k and l for the content c. If all sites were sent c, the sum of the masked replies is sum q_k: each p_kl(c) enters
once with + and once with -. If k was sent c and l was sent c' != c, p_kl(c) - p_kl(c') stays in it, the difference of
two independent uniform vectors to whoever does not know the secret of k and l, and so the sum is uniform whatever the
replies are. A server that sends one site another model than the others learns nothing from their sum. Source:
Pasquini, Francati, Ateniese, *Eluding Secure Aggregation in Federated Learning via Model Inconsistency*, CCS 2022. What
remains is the sum itself, over rounds.

Source: Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017, Figure 4. In
the paper the seeds of the common masks are shared among the sites; here the sites of the list reveal them, because the
same sites come back in every round. If one of them stays away between its reply and the end of the phase, while another
site is not listed, the phase has no effect.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.refusals import Refusal, RefusalCode, refusing
from resolvent.federation.protocol.stores import stored_secret
from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.answers import MASKED, position_of, sent_in
from resolvent.federation.secure.primitives import (
    SEED_BYTES,
    Identity,
    SiteKeys,
    add_stream,
    commitment,
    derive,
    open_sealed,
    seal,
    split_secret,
    stream,
    verify_signature,
)
from resolvent.federation.secure.rules import (
    Position,
    Sent,
    SumRules,
    card_content,
    context_of,
    list_content,
    names_of,
)

__all__ = ["Mask", "SecureSite", "pair_sign"]

_SECRET, _RECORD, _SECRET_BYTES = "secure.key", "secure.json", 32


class Mask(NamedTuple):
    """What hides a reply.

    Attributes:
        values: [n] integers that are added to those of the reply.
        shares: other site -> its sealed share of the own mask's seed.
        commitment: a digest of the seed.
    """

    values: NDArray[np.unsignedinteger]
    shares: dict[str, str]
    commitment: str


class SecureSite:
    """A site in the secure sums of one run.

    Its state is on the disk before an answer leaves, so that a site that is started again gives the same answers.

    Args:
        run: name of the run in its messages, which has the digest of the plan.
        rules: of how many sites a sum must consist.
        sites: the sites that take part in the run; None: those whose cards arrive.
    """

    def __init__(self, name: str, run: str, folder: Path, identity: Identity, rules: SumRules,
                 sites: Sequence[str] | None = None) -> None:
        self.name, self.rules = name, rules
        self._run, self._path, self._identity = run, folder / _RECORD, identity
        self._sites = None if sites is None else sorted(sites)
        folder.mkdir(parents=True, exist_ok=True)
        self._secret = stored_secret(folder / _SECRET, _SECRET_BYTES)
        self._keys = SiteKeys(self._secret)
        self._record: dict[str, Any] = {"cards": None, "position": [-1, 0], "asked": [], "sent": ["", ""], "shares": {},
                                        "listed": None, "summed": {}}
        if self._path.exists():
            self._record = json.loads(self._path.read_text("utf-8"))
        self._secrets: dict[str, bytes] = {}

    def check(self, message: Message, cohort: Sequence[str] | None) -> None:
        """Check that the site may send masked integers in answer to a message, before it works.

        Args:
            cohort: the sites that the plan has in the sum; None: the site does not know them.

        Raises:
            Refusal: it may not.
        """
        asked = message.facts.get("asked")
        self.check_asked(position_of(message), asked, sent_in(message))
        if cohort is not None:
            self.check_cohort(asked, cohort)

    def hide(self, message: Message, integers: NDArray[np.unsignedinteger]
             ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The facts and arrays of an answer with masked integers."""
        sent = sent_in(message)
        mask = self.mask(position_of(message), message.facts.get("asked"), sent, len(integers), integers.dtype.str)
        np.add(mask.values, integers, out=mask.values)
        return {"shares": mask.shares, "commitment": mask.commitment, "sent": sent.shared}, {MASKED: mask.values}

    def answer(self, message: Message) -> dict[str, Any]:
        """The facts of the answer to a step after the replies, or to the cards.

        Raises:
            Refusal: the site's rules forbid it.
        """
        position, facts = position_of(message), message.facts
        if message.kind == "roster":
            self.accept(facts.get("cards"))
            return {}
        if message.kind == "list":
            return {"signature": self.sign(position, facts.get("listed"))}
        return self.reveal(position, facts.get("listed"), facts.get("signatures"), facts.get("shares"))

    def card(self) -> dict[str, Any]:
        """The site's public keys for the run, signed with its certificate."""
        content = card_content(self._run, self.name, self._keys.exchange, self._keys.signing)
        signature = self._identity.sign(content)
        return {"exchange": self._keys.exchange, "signing": self._keys.signing, "signature": signature}

    def accept(self, cards: Any) -> None:
        """Accept the cards of all sites of the run."""
        with refusing(RefusalCode.SUM):
            keys = self._checked_cards(cards)
        if self._record["cards"] is None:
            self._write(cards=keys)
        elif self._record["cards"] != keys:
            raise Refusal(RefusalCode.SUM, "other public keys of the sites have been accepted for this run")

    def _checked_cards(self, cards: Any) -> dict[str, dict[str, str]]:
        if not isinstance(cards, Mapping):
            raise InputError("the message has no cards")
        names = names_of(sorted(map(str, cards)), "the sites")
        if self._sites is not None and names != self._sites:
            raise InputError(f"the cards are those of {', '.join(names)}, and the plan has {', '.join(self._sites)}")
        if len(names) < self.rules.min_sites:
            raise InputError(f"the run has {len(names)} sites, and a sum needs {self.rules.min_sites}")
        keys = {}
        for name in names:
            card = cards[name] if isinstance(cards[name], Mapping) else {}
            exchange, signing = str(card.get("exchange")), str(card.get("signing"))
            signer = self._identity.verify(card_content(self._run, name, exchange, signing), card.get("signature"))
            if signer != name:
                raise InputError(f"the card of {name} has the signature of {signer}")
            keys[name] = {"exchange": exchange, "signing": signing}
        if keys.get(self.name) != {"exchange": self._keys.exchange, "signing": self._keys.signing}:
            raise InputError("the card of this site is another one than its own")
        if len({card["exchange"] for card in keys.values()}) < len(keys):
            raise InputError("two sites have the same public key")
        return keys

    def check_asked(self, position: Position, asked: Any, sent: Sent) -> list[str]:
        """Check that the site may reply in a phase, before it works; returns the asked sites.

        Args:
            asked: the sites whose replies are to be summed, as they have arrived.
            sent: what the server sent.

        Raises:
            Refusal: it may not.
        """
        record = self._record
        with refusing(RefusalCode.SUM):
            names = names_of(asked, "the asked sites")
            if record["cards"] is None:
                raise InputError("the site has not accepted the cards of the sites")
            self._check_sites(names, len(names), within=record["cards"], title="the asked sites")
            last = tuple(record["position"])
            if position < last:
                raise InputError("the phase is earlier than that of the site")
            if position == last and (names != record["asked"] or list(sent) != record["sent"]):
                raise InputError("the site was asked with other sites, or with another message, in this phase")
            if self.rules.needs_all(len(names)):
                self._check_repeated(_key(position, sent.payload), names)
        return names

    def check_cohort(self, asked: Any, cohort: Sequence[str]) -> None:
        """Check that a sum of all sites has all sites of the plan, if the plan has such sums only (``threshold`` 1).

        A server that asks fewer sites in one round than in another one, for nearly the same model, would have the
        others' replies as the difference of both sums.
        """
        if self.rules.threshold == 1 and asked != sorted(cohort):
            raise Refusal(RefusalCode.SUM, f"the sum is over other sites than those of the plan, {', '.join(cohort)}")

    def mask(self, position: Position, asked: Any, sent: Sent, count: int, dtype: str) -> Mask:
        """The mask of a reply; the same again for the same phase.

        The caller adds it to one reply only, stores the sum before it leaves, and repeats the stored bytes.

        Args:
            asked: the sites whose replies are to be summed.
            sent: what the server sent.
            dtype: ``<u4`` or ``<u8``.
        """
        names = self.check_asked(position, asked, sent)
        needs_all = self.rules.needs_all(len(names))
        if position > tuple(self._record["position"]):
            summed = {_key(position, sent.payload): _digest(names)} if needs_all else {}
            self._write(position=list(position), asked=names, sent=list(sent), listed=None,
                        summed={**self._record["summed"], **summed},
                        shares={} if needs_all else self._sealed_shares(position, names))
        return Mask(self._mask_values(position, sent.shared, names, count, dtype), dict(self._record["shares"]),
                    "" if needs_all else commitment(self._own_seed(position), self._run, position))

    def _mask_values(self, position: Position, shared: str, names: Sequence[str], count: int,
                     dtype: str) -> NDArray[np.unsignedinteger]:
        values = (np.zeros(count, dtype) if self.rules.needs_all(len(names))
                  else stream(self._own_seed(position), count, dtype))
        for other in names:
            if other != self.name:
                add_stream(values, self._pair_seed(position, shared, other), pair_sign(self.name, other))
        return values

    def repeated_mask(self, position: Position, shared: str, count: int, dtype: str) -> NDArray[np.unsignedinteger]:
        """The mask of an earlier reply, to show at the site what it hid; all sites must have been asked."""
        return self._mask_values(position, shared, [*self._record["cards"]], count, dtype)

    def sign(self, position: Position, listed: Any) -> str:
        """Sign the list of the sites that are in the sum of a phase.

        If the server sends the same message in a later round, its sum must have the same sites: two sums over different
        sites of the replies to one message would differ by single replies.
        """
        with refusing(RefusalCode.SUM):
            names = self._checked_list(position, listed)
            self._check_repeated(_key(position, self._record["sent"][0]), names)
        if self._record["listed"] is None:
            self._write(listed=names)
        elif self._record["listed"] != names:
            raise Refusal(RefusalCode.SUM, "another list of sites was signed for this phase")
        return self._keys.sign(list_content(self._run, position, self._record["sent"][1], self._record["asked"], names))

    def reveal(self, position: Position, listed: Any, signatures: Any, shares: Any) -> dict[str, Any]:
        """What the server needs to remove the masks from the sum of the listed replies.

        Args:
            signatures: listed site -> its signature of the list.
            shares: other listed site -> the sealed share that it sent to this site.

        Returns:
            ``own``: the seed of the own mask; ``shares``: listed site -> share of its seed; ``seeds``: site that was
            asked and is not listed -> seed of the common mask.

        Raises:
            Refusal: the site has not signed the list, it has too few valid signatures, or a share was changed.
        """
        record = self._record
        with refusing(RefusalCode.SUM):
            names = self._checked_list(position, listed)
            if record["listed"] != names:
                raise InputError("this site has signed another list for this phase, or none")
            self._check_signatures(position, names, signatures)
            if not isinstance(shares, Mapping):
                raise InputError("the message has no shares")
            opened = {name: self._open_share(position, name, sealed).hex() for name, sealed in shares.items()
                      if name in names and name != self.name}
        self._write(summed={**record["summed"], _key(position, record["sent"][0]): _digest(names)})
        return {"own": self._own_seed(position).hex(), "shares": opened,
                "seeds": {name: self._pair_seed(position, record["sent"][1], name).hex()
                          for name in record["asked"] if name not in names}}

    def _check_repeated(self, key: str, names: Sequence[str]) -> None:
        if self._record["summed"].get(key, _digest(names)) != _digest(names):
            raise InputError("the replies to the same message were summed in an earlier round over other sites: the "
                             "two sums would differ by single replies")

    def _check_signatures(self, position: Position, names: Sequence[str], signatures: Any) -> None:
        content = list_content(self._run, position, self._record["sent"][1], self._record["asked"], names)
        received = signatures if isinstance(signatures, Mapping) else {}
        valid, needed = 0, self.rules.smallest(len(self._record["asked"]))
        for name in names:
            if valid < needed and name in received:
                valid += verify_signature(self._record["cards"][name]["signing"], content, received[name])
        if valid < needed:
            raise InputError(f"the list has {valid} valid signatures of its sites, and needs {needed}")

    def _checked_list(self, position: Position, listed: Any) -> list[str]:
        names, asked = names_of(listed, "the listed sites"), self._record["asked"]
        if tuple(self._record["position"]) != position:
            raise InputError("the site has sent no reply in this phase, or is in a later one")
        self._check_sites(names, len(asked), within=asked, title="the listed sites")
        return names

    def _check_sites(self, names: Sequence[str], asked: int, *, within: Sequence[str], title: str) -> None:
        if unknown := [name for name in names if name not in within]:
            raise InputError(f"{title} include {', '.join(unknown)}, which is not among {', '.join(within)}")
        if self.name not in names:
            raise InputError(f"{title} do not include this site")
        if len(names) < self.rules.smallest(asked):
            raise InputError(f"{title} are {len(names)}, and a sum needs {self.rules.smallest(asked)} of {asked}")

    def _own_seed(self, position: Position) -> bytes:
        return derive(self._secret, "own mask", self._run, *position, length=SEED_BYTES)

    def _pair_seed(self, position: Position, shared: str, other: str) -> bytes:
        return derive(self._secret_with(other), "common mask", self._run, *position, shared, length=SEED_BYTES)

    def _secret_with(self, other: str) -> bytes:
        if other not in self._secrets:
            self._secrets[other] = self._keys.shared_secret(self._record["cards"][other]["exchange"])
        return self._secrets[other]

    def _sealed_shares(self, position: Position, asked: Sequence[str]) -> dict[str, str]:
        """The shares of the own seed for the others."""
        others, needed = [name for name in asked if name != self.name], self.rules.needed(len(asked))
        shares = split_secret(self._own_seed(position), needed, len(others))
        return {other: seal(derive(self._secret_with(other), "shares", self._run, self.name), share,
                            context_of(self._run, position, self.name, other))
                for other, share in zip(others, shares, strict=True)}

    def _open_share(self, position: Position, owner: str, sealed: Any) -> bytes:
        return open_sealed(derive(self._secret_with(owner), "shares", self._run, owner), sealed,
                           context_of(self._run, position, owner, self.name))

    def _write(self, **changes: Any) -> None:
        record = {**self._record, **changes}
        write_text(self._path, json.dumps(record))
        self._record = record  # after the file


def _key(position: Position, message: str) -> str:
    """What the replies are to: the same in every round in which the server sends the same in the same phase."""
    return f"{position[1]} {message}"


def _digest(names: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(names)).encode()).hexdigest()[:32]


def pair_sign(site: str, other: str) -> int:
    """+1 or -1: with which sign a site adds its common mask with another one; the other has the opposite sign."""
    return 1 if site < other else -1
