"""A site's number of rows is signed once, is shown to all sites, and is the weight of its replies for the whole run."""

import json
from dataclasses import replace

import pytest

from federation.harness import SITES, Consortium, answer_of, read_request, request_bytes, signed_sizes
from federation.secure_parts import SECURE
from resolvent.comparisons.runs.record import read_record
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.wire import decode, encode

ROWS = {"aachen": 15, "berlin": 20}  # training rows


class Claims(InProcess):
    """Aachen's answers of a kind are changed."""

    kind, change = "", staticmethod(lambda message: message)

    def broadcast(self, messages, **times):
        answers = super().broadcast(messages, **times)
        message = decode(answers["aachen"]) if "aachen" in answers else None
        if message is not None and message.kind == self.kind:
            answers["aachen"] = encode(self.change(message))
        return answers


def claiming(kind, change):
    """A transport with such a site."""
    return type("Claiming", (Claims,), {"kind": kind, "change": staticmethod(change)})


def with_facts(**facts):
    return lambda message: replace(message, facts={**message.facts, **{
        name: value(message.facts[name]) for name, value in facts.items()}})


def test_every_site_and_the_report_say_who_holds_which_share(tmp_path):
    assert Consortium(tmp_path).serve() == {"status": "complete"}
    data = read_record(tmp_path / "out").data
    assert dict(zip(data.parties, data.train, strict=True)) == ROWS
    for site in SITES:
        sheet = json.loads((tmp_path / site / "mine-1" / "data-sheet.json").read_text())
        assert sheet["training_rows_of_all_sites"] == {
            name: {"rows": rows, "share": rows / 35} for name, rows in ROWS.items()}


@pytest.mark.parametrize(("facts", "rows"), [
    ({"samples": lambda rows: 20 * rows}, "15 rows ('train')"),
    ({"split_sizes": lambda sizes: [*sizes[:2], 20 * sizes[2]]}, "9 rows ('test')")], ids=["training", "test"])
def test_a_site_that_begins_with_another_size_is_refused_by_name(facts, rows, tmp_path):
    """The start of a method says by how many rows its replies are weighed, and by how many test rows its scores."""
    outcome = Consortium(tmp_path).serve(transport=claiming("ready", with_facts(**facts)))
    assert outcome["status"] == "refused"
    number = 20 * int(rows.split()[0])
    assert f"aachen: it has reported {rows} to all sites, and begins with {number}" in outcome["message"]


def test_a_judgement_of_more_test_rows_than_reported_does_not_count(tmp_path):
    def boast(message):
        content = message.facts["content"]
        if content.get("judgement") is None:
            return message
        judged = {**content["judgement"], "test_rows": 20 * content["judgement"]["test_rows"]}
        return replace(message, facts={**message.facts, "content": {**content, "judgement": judged}})

    assert Consortium(tmp_path).serve(transport=claiming("answer", boast)) == {"status": "complete"}
    record = read_record(tmp_path / "out")
    assert any(line.startswith("aachen: its judgement is of 180 test rows, and it has reported 9")
               for line in record.warnings)
    assert [site.name for site in record.sites] == ["berlin"]


def aachen_with(rows):
    """A change of the sizes that berlin is shown, by whoever signs with the keys of the sites."""
    return lambda plan, sizes: {**sizes, "aachen": signed_sizes(plan, {"aachen": rows})["aachen"]}


@pytest.mark.parametrize("change", [
    lambda plan, sizes: {**sizes, "aachen": {**sizes["aachen"], "rows": 300}},  # the server's own claim
    lambda plan, sizes: {**sizes, "aachen": {**sizes["aachen"], "signature": sizes["berlin"]["signature"]}},
    lambda plan, sizes: {**sizes, "aachen": signed_sizes(plan, {"berlin": 15})["berlin"]},
    lambda plan, sizes: {**sizes, "aachen": signed_sizes("another plan", {"aachen": 15})["aachen"]},
    aachen_with(True), aachen_with("15")],
    ids=["number", "signature", "another site", "another plan", "no integer", "text"])
def test_a_site_accepts_sizes_with_the_signatures_of_their_sites_only(change, tmp_path):
    consortium, refused = Consortium(tmp_path), []

    class Server(InProcess):
        def broadcast(self, messages, **times):
            request = read_request(bytes(messages["berlin"]))
            if request is not None and request["kind"] == "prepare":
                request["sizes"] = change(request["plan"], request["sizes"])
                refused.append(answer_of(self.handlers["berlin"](request_bytes(**request)))["refused"]["code"])
            return super().broadcast(messages, **times)

    assert consortium.serve(transport=Server) == {"status": "complete"}
    assert refused == ["sizes"]


def test_a_site_cannot_sign_a_second_size_in_a_run(tmp_path):
    """Aachen signs 300 rows after the sites have accepted 15."""
    consortium, refused = Consortium(tmp_path), []

    class Colluding(InProcess):
        def broadcast(self, messages, **times):
            request, answers = read_request(bytes(messages["berlin"])), super().broadcast(messages, **times)
            if request is not None and request["kind"] == "prepare":
                request["sizes"] = aachen_with(300)(request["plan"], request["sizes"])
                refused.append(answer_of(self.handlers["berlin"](request_bytes(**request)))["refused"]["code"])
            return answers

    assert consortium.serve(transport=Colluding) == {"status": "complete"}
    assert refused == ["sizes"]


def test_in_a_secure_sum_the_weights_add_up_to_the_reported_rows(tmp_path):
    """Masks are added, so that a site can add to the weight in its masked reply; it is seen, without a name."""
    def heavier(message):
        if "/1/" not in message.run:  # that of FedAvg; the first method sends nothing
            return message
        masked = message.arrays["masked"].copy()
        masked[-1] += 300 - 15
        return replace(message, arrays={"masked": masked})

    outcome = Consortium(tmp_path, text=SECURE.replace("evaluate_every: 3\n", "")).serve(
        transport=claiming("reply", heavier))
    assert outcome["status"] == "stopped"
    assert "a weight of 320 together, and before the rounds they have agreed on 35" in outcome["message"]
