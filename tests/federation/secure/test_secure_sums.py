"""Secure sums: the right sum or none whoever drops out, the same after every kill, nothing for a server that lies."""

from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

import nightly
from federation.secure_parts import (
    NAMES,
    RUN,
    cards_of,
    secure_sum,
    sent,
    sites_of,
    vectors_of,
)
from resolvent.errors import InputError
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import Message
from resolvent.federation.secure.answers import shared_digest
from resolvent.federation.secure.primitives import SiteKeys, derive, local_identities, stream
from resolvent.federation.secure.rules import SumRules, card_content
from resolvent.federation.secure.server import SecureSum
from resolvent.federation.secure.site import SecureSite

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

FIRST = (0, 0)


def subsets(names):
    return chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))


def plain_sum(vectors, names):
    return sum((vectors[name] for name in names), np.zeros_like(next(iter(vectors.values()))))


@pytest.mark.parametrize("dtype", ["<u4", "<u8"])
def test_the_sum_is_exact_modulo_the_modulus(dtype, tmp_path):
    sites, vectors = sites_of(tmp_path), vectors_of(NAMES, 100, dtype)
    for phase in range(3):
        listed, total = secure_sum(sites, (0, phase), vectors, message=f"w{phase}")
        assert listed == sorted(NAMES)
        np.testing.assert_array_equal(total, plain_sum(vectors, NAMES))
    listed, total = secure_sum(sites, (5, 0), vectors, asked=NAMES[1:], message="of a cohort")
    np.testing.assert_array_equal(total, plain_sum(vectors, NAMES[1:]))


@pytest.mark.when_changed
@nightly.parametrize("count", [4, 5])
def test_whoever_drops_out_at_any_step_the_sum_is_right_or_has_no_effect(count, tmp_path, monkeypatch):
    """Every site stays, or drops out before its reply, before its signature, or before it reveals."""
    monkeypatch.setattr("resolvent.federation.secure.site.write_text", lambda path, text: path.write_text(text))
    names, rules = NAMES[:count], SumRules(min_sites=2, threshold=0.5)
    needed = rules.needed(count)
    sites, vectors = sites_of(tmp_path, count, rules=rules), vectors_of(names)
    cards, outcomes = cards_of(sites), {True: 0, False: 0}
    cases = [(work, sign, reveal) for work in subsets(names) for sign in subsets([n for n in names if n not in work])
             for reveal in subsets([n for n in names if n not in {*work, *sign}])]
    for t, (work, sign, reveal) in enumerate(cases):
        silent = (work, sign, (*sign, *reveal))
        listed, total = secure_sum(sites, (t, 0), vectors, message=f"w{t}", silent=silent, rules=rules, cards=cards)
        assert listed == sorted({*names} - {*work})
        present = [name for name in listed if name not in silent[2]]
        enough = len(listed) - len(sign) >= needed
        # A site that left after its reply takes its common masks with those that never replied along.
        recovered = present == listed or (not work and len(present) >= needed)
        assert (total is not None) == (enough and recovered), (work, sign, reveal)
        if total is not None:
            np.testing.assert_array_equal(total, plain_sum(vectors, listed))
        outcomes[total is not None] += 1
    assert len(cases) == 4**count
    assert min(outcomes.values()) > 10


def test_a_site_that_is_killed_at_any_step_gives_the_same_answers(tmp_path):
    vectors = vectors_of(NAMES)

    def run(folder, kill):
        sites, answers = sites_of(folder), []

        def between(sites, step):
            return sites_of(folder) if step == kill else sites

        for t in range(2):
            sites = between(sites, "first")
            silent = ((NAMES[2],), (), ()) if t else ((), (), ())
            answers.append(secure_sum(sites, (t, 0), vectors, message=f"w{t}", silent=silent, between=between))
        return answers

    expected = run(tmp_path / "whole", "never")
    for kill in ("first", "masked", "signed", "revealed"):
        for (listed, total), (listed_before, before) in zip(run(tmp_path / kill, kill), expected, strict=True):
            assert listed == listed_before
            np.testing.assert_array_equal(total, before)


def test_every_answer_is_repeated_to_the_bit_after_a_kill(tmp_path):
    sites = sites_of(tmp_path)
    asked, name = sorted(NAMES), NAMES[0]
    mask = sites[name].mask(FIRST, asked, sent("w0"), 8, "<u8")
    total = SecureSum(RUN, FIRST, asked, SumRules(), cards_of(sites))
    for other in asked:
        theirs = sites[other].mask(FIRST, asked, sent("w0"), 8, "<u8")
        total.add(other, theirs.values, theirs.shares, theirs.commitment, "w0")
    for other in asked:
        total.accept_signature(other, sites[other].sign(FIRST, asked))
    revealed = sites[name].reveal(FIRST, asked, total.signatures, total.shares_for(name))
    again = sites_of(tmp_path, accept=False)[name]
    repeated = again.mask(FIRST, asked, sent("w0"), 8, "<u8")
    assert (repeated.values == mask.values).all()
    assert repeated.shares == mask.shares
    assert again.sign(FIRST, asked) == total.signatures[name]
    assert again.reveal(FIRST, asked, total.signatures, total.shares_for(name)) == revealed
    stored = SecureSum.from_message(total.message(), SumRules(), cards_of(sites))  # the server was killed
    assert stored.shares_for(name) == total.shares_for(name)
    everybody = {site: sites[site].reveal(FIRST, asked, total.signatures, total.shares_for(site)) for site in asked}
    assert not stored.unmask(everybody).any()


def _refused(call, match):
    with pytest.raises(Refusal, match=match) as caught:
        call()
    assert caught.value.code == RefusalCode.SUM


@pytest.fixture
def masked(tmp_path):
    """Sites that have sent their replies of the first phase, and the server's sum."""
    sites, asked = sites_of(tmp_path), sorted(NAMES)
    total = SecureSum(RUN, FIRST, asked, SumRules(), cards_of(sites))
    for name in asked:
        mask = sites[name].mask(FIRST, asked, sent("w0"), 4, "<u8")
        total.add(name, mask.values, mask.shares, mask.commitment, "w0")
    return sites, asked, total


def test_a_server_cannot_have_two_lists_of_a_phase(masked):
    sites, asked, total = masked
    site = sites[NAMES[0]]
    site.sign(FIRST, asked)
    _refused(lambda: site.sign(FIRST, asked[:4]), "another list")
    for name in asked:
        total.accept_signature(name, sites[name].sign(FIRST, asked))
    _refused(lambda: site.reveal(FIRST, asked[:4], total.signatures, {}), "another list")
    # Two lists for two halves: neither has enough signatures.
    signatures = {name: sites[name].sign(FIRST, asked) for name in asked[:3]}
    _refused(lambda: site.reveal(FIRST, asked, signatures, {}), "3 valid signatures .* needs 4")


def test_a_server_cannot_lie_about_who_replied(masked):
    sites, asked, _ = masked
    site = sites[NAMES[0]]
    _refused(lambda: site.sign(FIRST, asked[1:]), "do not include this site")
    _refused(lambda: site.sign(FIRST, [*asked, "Faro"]), "Faro, which is not among")
    _refused(lambda: site.sign(FIRST, asked[:3]), "a sum needs 4 of 5")
    _refused(lambda: site.sign(FIRST, sorted([asked[0], *asked])), "a site is twice")
    # A site that replied is named as absent: the others reveal its common masks, but then its own mask stays hidden.
    without = [name for name in asked if name != NAMES[4]]
    signatures = {name: sites[name].sign(FIRST, without) for name in without}
    revealed = [sites[name].reveal(FIRST, without, signatures, {}) for name in without]
    assert all(NAMES[4] in answer["seeds"] and NAMES[4] not in answer["shares"] for answer in revealed)
    _refused(lambda: sites[NAMES[4]].reveal(FIRST, without, signatures, {}), "do not include this site")


def test_a_server_cannot_forge_or_replay_signatures_and_shares(masked):
    sites, asked, total = masked
    site, name = sites[NAMES[0]], NAMES[0]
    for other in asked:
        total.accept_signature(other, sites[other].sign(FIRST, asked))
    shares = total.shares_for(name)
    keys = SiteKeys(b"of the server")
    forged = {other: keys.sign(b"list") for other in asked}
    _refused(lambda: site.reveal(FIRST, asked, forged, shares), "0 valid signatures")
    copied = dict.fromkeys(asked, total.signatures[NAMES[1]])
    _refused(lambda: site.reveal(FIRST, asked, copied, shares), "1 valid signatures")
    swapped = {NAMES[1]: shares[NAMES[2]]}
    _refused(lambda: site.reveal(FIRST, asked, total.signatures, swapped), "a sealed share was changed")
    _refused(lambda: site.reveal(FIRST, asked, total.signatures, {NAMES[1]: "00" * 40}), "a sealed share was changed")
    second = sites[NAMES[1]].mask((1, 0), asked, sent("w1"), 4, "<u8")
    site.mask((1, 0), asked, sent("w1"), 4, "<u8")
    site.sign((1, 0), asked)
    _refused(lambda: site.reveal((1, 0), asked, total.signatures, {NAMES[1]: second.shares[name]}),
             "0 valid signatures")  # signatures of another phase
    _refused(lambda: site.sign(FIRST, asked), "no reply in this phase, or is in a later one")
    _refused(lambda: site.mask(FIRST, asked, sent("w0"), 4, "<u8"), "earlier than that of the site")


def test_a_server_cannot_ask_twice(masked, tmp_path):
    sites, asked, total = masked
    site = sites[NAMES[0]]
    _refused(lambda: site.mask(FIRST, asked[:4], sent("w0"), 4, "<u8"), "other sites, or with another message")
    _refused(lambda: site.mask(FIRST, asked, sent("another"), 4, "<u8"), "other sites, or with another message")
    for name in asked:
        total.accept_signature(name, sites[name].sign(FIRST, asked))
    site.reveal(FIRST, asked, total.signatures, total.shares_for(NAMES[0]))
    for t, of_process in enumerate((site, sites_of(tmp_path, accept=False)[NAMES[0]]), 7):
        of_process.mask((t, 0), asked, sent("w0"), 4, "<u8")
        _refused(lambda of_process=of_process, t=t: of_process.sign((t, 0), asked[:4]), "differ by single replies")
        of_process.sign((t, 0), asked)  # the same sites again: nothing new
    site.mask((9, 1), asked, sent("w0"), 4, "<u8")
    site.sign((9, 1), asked[:4])  # another phase computes something else


@pytest.mark.parametrize(("asked", "match"), [
    (NAMES[:2], "a sum needs 3 of 2"), (NAMES[1:], "do not include this site"),
    ((*NAMES, "Faro"), "Faro, which is not among"), ((NAMES[0],) * 3, "a site is twice"), ("Aarhus", "no names")])
def test_a_server_cannot_ask_a_few_sites(asked, match, tmp_path):
    site = sites_of(tmp_path)[NAMES[0]]
    _refused(lambda: site.mask(FIRST, asked if isinstance(asked, str) else sorted(asked), sent("w0"), 4, "<u8"), match)


def test_a_server_cannot_swap_keys(tmp_path):
    sites = sites_of(tmp_path, accept=False)
    site, cards = sites[NAMES[0]], cards_of(sites)
    server = SiteKeys(b"of the server")
    other = NAMES[1]
    keys = {"exchange": server.exchange, "signing": server.signing}
    _refused(lambda: site.accept({**cards, other: {**cards[other], **keys}}), "no valid signature")
    content = card_content(RUN, other, server.exchange, server.signing)
    as_another = {**keys, "signature": local_identities(NAMES)[NAMES[2]].sign(content)}  # an insider helps
    _refused(lambda: site.accept({**cards, other: as_another}), f"card of {other} has the signature of {NAMES[2]}")
    _refused(lambda: site.accept({name: cards[name] for name in NAMES[:3]}), "and the plan has")
    _refused(lambda: site.accept({**cards, NAMES[0]: cards[other]}), "no valid signature")
    _refused(lambda: site.mask(FIRST, sorted(NAMES), sent("w0"), 4, "<u8"), "has not accepted the cards")
    earlier = SecureSite(other, "an earlier run", tmp_path / "earlier", local_identities(NAMES)[other], SumRules())
    _refused(lambda: site.accept({**cards, other: earlier.card()}), "no valid signature")  # replayed
    site.accept(cards)
    lost = SecureSite(other, RUN, tmp_path / "lost folder", local_identities(NAMES)[other], SumRules(), NAMES)
    _refused(lambda: site.accept({**cards, other: lost.card()}), "other public keys .* accepted")


def test_what_the_server_has_before_the_end_is_uniform(masked):
    """With the true masks, every other reply explains what the server has: a shift of a reply shifts one seed only."""
    sites, asked, _ = masked
    values = np.concatenate([sites[name].mask(FIRST, asked, sent("w0"), 4096, "<u8").values for name in asked])
    bits = np.unpackbits(values.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))
    # The sum of the masks is that of the own masks: the common ones cancel.
    summed = plain_sum({name: sites[name].mask(FIRST, asked, sent("w0"), 16, "<u8").values for name in asked}, asked)
    expected = sum((stream(sites[name]._own_seed(FIRST), 16, "<u8") for name in asked), np.zeros(16, np.uint64))
    np.testing.assert_array_equal(summed, expected)


@pytest.mark.parametrize("rules", [SumRules(threshold=1), SumRules()], ids=["all sites", "two thirds"])
def test_a_sum_over_sites_that_were_sent_different_messages_is_uniform(rules, tmp_path):
    """Also to a server that has every own mask: p(c) - p(c') of the one site and each other stays in the sum."""
    sites, asked, count = sites_of(tmp_path, 4, rules), sorted(NAMES[:4]), 2**14
    total = np.zeros(count, "<u8")
    for name in asked:
        content = sent("another model") if name == asked[1] else sent("w0")
        total += sites[name].mask(FIRST, asked, content, count, "<u8").values
        if not rules.needs_all(len(asked)):
            total -= stream(sites[name]._own_seed(FIRST), count, "<u8")
    cells = np.bincount(total.view(np.uint8), minlength=256)
    statistic = ((cells - cells.mean()) ** 2 / cells.mean()).sum()  # chi-squared with 255 degrees of freedom
    assert abs(statistic - 255) < 5 * np.sqrt(2 * 255)
    assert len(np.unique(total)) == count


def test_a_site_that_was_sent_another_message_does_not_sign_for_the_others(tmp_path):
    sites, asked = sites_of(tmp_path, 4), sorted(NAMES[:4])
    total = SecureSum(RUN, FIRST, asked, SumRules(), cards_of(sites))
    for name in asked:
        mask = sites[name].mask(FIRST, asked, sent("other" if name == asked[0] else "w0"), 4, "<u8")
        total.add(name, mask.values, mask.shares, mask.commitment, "w0")
    signed = {name: total.accept_signature(name, sites[name].sign(FIRST, asked)) for name in asked}
    assert signed == {asked[0]: False, **dict.fromkeys(asked[1:], True)}
    _refused(lambda: sites[asked[0]].reveal(FIRST, asked, total.signatures, {}), "0 valid signatures")


@pytest.mark.parametrize("kind", ["work", "evaluate", "sum"])
def test_the_digest_of_a_message_has_all_that_sites_have_in_common(kind):
    """What a site has for itself is listed: its name, key and effort, and which of its replies counted."""
    message = Message(kind, RUN, 3, 0, {"party": "a", "asked": ["a", "b"], "counted": [2, 0], "refused": None},
                      {"payload/w": np.ones(3), "shared/w": np.zeros(2), "key": np.ones(2, np.uint32),
                       "effort": np.float32(1)})
    own = [{"facts": {**message.facts, "party": "b", "counted": None, "refused": [1, 0]}},
           {"arrays": {**message.arrays, "key": np.zeros(2, np.uint32), "effort": np.float32(0.5)}}]
    common = [{"kind": "other"}, {"run": "other"}, {"round": 4}, {"phase": 1},
              {"facts": {**message.facts, "asked": ["a", "b", "c"]}}, {"facts": {**message.facts, "further": 1}},
              {"arrays": {**message.arrays, "payload/w": np.nextafter(np.ones(3), 2)}},
              {"arrays": {**message.arrays, "payload/w": np.ones(3, np.float32)}},
              {"arrays": {**message.arrays, "payload/v": np.ones(3)}},
              {"arrays": {**message.arrays, "shared/w": np.ones(2)}}]
    assert {shared_digest(replace(message, **change)) for change in own} == {shared_digest(message)}
    digests = {shared_digest(replace(message, **change)) for change in common} | {shared_digest(message)}
    assert len(digests) == len(common) + 1


def test_a_stream_is_aes_in_counter_mode():
    """The first block is the known answer for the key and the block 0, the others are those of the next counters."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    words = stream(bytes(16), 30_000, "<u8")
    assert words[:2].tobytes().hex() == "66e94bd4ef8a2c3b884cfa59ca342b2e"
    blocks = b"".join(counter.to_bytes(16, "big") for counter in range(15_000))
    assert words.tobytes() == Cipher(algorithms.AES(bytes(16)), modes.ECB()).encryptor().update(blocks)
    assert stream(bytes(16), 60_000, "<u4").tobytes() == words.tobytes()
    assert derive(b"s", "a", 1) != derive(b"s", "a", 2) != derive(b"s", "a1")


@pytest.mark.parametrize("settings", [{"min_sites": 1}, {"threshold": 0.4}, {"threshold": 1.1}])
def test_rules_that_protect_nobody_are_refused(settings):
    with pytest.raises(InputError, match="SumRules"):
        SumRules(**settings)


def test_thresholds():
    rules = SumRules()
    assert [rules.needed(n) for n in (3, 4, 5, 6, 10, 30, 100)] == [3, 3, 4, 5, 7, 21, 67]
    assert [SumRules(threshold=1).needed(n) for n in (3, 4, 100)] == [3, 4, 100]
    assert [n for n in range(2, 100) if rules.needs_all(n)] == [2, 3]
    # Two lists of n sites with t signatures each have more than 2t - n common signers: more than a third of n.
    assert all(2 * rules.needed(n) - n > n / 3 for n in range(3, 200))


def test_a_site_can_show_what_an_earlier_mask_hid(tmp_path):
    site = sites_of(tmp_path)["Aarhus"]
    first = site.mask((0, 1), sorted(NAMES), sent("w0"), 5, "<u8").values
    site.mask((1, 0), sorted(NAMES), sent("w1"), 3, "<u8")
    assert np.array_equal(site.repeated_mask((0, 1), "w0", 5, "<u8"), first)


@pytest.fixture
def all_sites(tmp_path):
    """Sites whose sums must have all of them, and their replies of the first phase."""
    return sites_of(tmp_path, rules=SumRules(threshold=1)), vectors_of(NAMES, 6)


def test_masks_of_sums_of_all_sites_cancel_and_no_smaller_sum_has_a_result(all_sites):
    sites, vectors = all_sites
    asked, masked = sorted(NAMES), {}
    for name in asked:
        mask = sites[name].mask(FIRST, asked, sent("w0"), 6, "<u8")
        assert (mask.shares, mask.commitment) == ({}, "")
        masked[name] = vectors[name] + mask.values
    for names in map(list, subsets(asked)):
        if names:
            is_sum = (plain_sum(masked, names) == plain_sum(vectors, names)).all()
            assert is_sum == (names == asked)
    total = SecureSum(RUN, FIRST, asked, SumRules(threshold=1), cards_of(sites))
    for name in asked[:4]:
        total.add(name, masked[name], {}, "", "w0")
    assert not total.has_enough_sites


def test_a_site_whose_sums_have_all_sites_reveals_nothing_that_unmasks_fewer(all_sites):
    """All others but one work with the server: the two honest sites have a common mask, which neither ever reveals."""
    sites, _ = all_sites
    asked = sorted(NAMES)
    masks = {name: sites[name].mask(FIRST, asked, sent("w0"), 6, "<u8").values for name in asked}
    for site in sites.values():
        for listed in map(list, subsets(asked)):
            if len(listed) < 5:
                _refused(lambda site=site, listed=listed: site.sign(FIRST, listed), "a sum needs 5 of 5|not include")
    signatures = {name: sites[name].sign(FIRST, asked) for name in asked}
    revealed = sites[asked[0]].reveal(FIRST, asked, signatures, {})
    assert revealed["seeds"] == {}
    # What the helpers know of the first site's mask: all common masks but that with the second one.
    known = masks[asked[0]].copy()
    for other in asked[2:]:
        known -= stream(sites[other]._pair_seed(FIRST, "w0", asked[0]), 6, "<u8")
    common = stream(sites[asked[1]]._pair_seed(FIRST, "w0", asked[0]), 6, "<u8")
    np.testing.assert_array_equal(known, common)
    assert revealed["own"] != sites[asked[1]]._pair_seed(FIRST, "w0", asked[0]).hex()


def test_replies_to_the_same_message_have_the_same_sites_also_if_all_must_be_in_a_sum(all_sites, tmp_path):
    """Sums of all five and of four sites for the same replies would differ by a reply, without any further step."""
    sites, _ = all_sites
    asked = sorted(NAMES)
    for name in asked:
        sites[name].mask(FIRST, asked, sent("w0"), 6, "<u8")
    again = sites_of(tmp_path, rules=SumRules(threshold=1), accept=False)
    for site in (sites[asked[0]], again[asked[0]]):
        _refused(lambda site=site: site.mask((1, 0), asked[:4], sent("w0"), 6, "<u8"), "differ by single replies")
    sites[asked[0]].mask((1, 0), asked, sent("w0"), 6, "<u8")
    sites[asked[0]].mask((2, 0), asked[:4], sent("another"), 6, "<u8")
