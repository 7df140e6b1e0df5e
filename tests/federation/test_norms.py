"""A reply far longer than the others does not count and is reported by name; the report shows all norms."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import nightly
import resolvent as rv
from algorithms.helpers import HUGE, Huge
from federation.harness import EXPERIMENT, Growing, named, signed
from federation.parts import Federation, check_trajectory, quadratic
from resolvent.comparisons.runs.record import read_record
from resolvent.comparisons.runs.report import redraw_report
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.wire import decode, encode
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.participation import Full

THREE = ("aachen", "baden", "berlin")
ONE_METHOD = EXPERIMENT.replace("alone: local, ", "")


@pytest.mark.when_changed
def test_the_network_refuses_the_replies_that_the_simulation_refuses(tmp_path):
    algorithm = rv.combinators.Attacked(rv.fedavg(rv.solvers.GD(0.05, steps=3)), Huge(), parties=(3,))
    with jax.enable_x64(True):
        check_trajectory(algorithm, quadratic(), Full(), tmp_path)


@pytest.mark.when_changed
def test_norms_of_all_replies_are_in_the_record(tmp_path):
    algorithm = rv.combinators.Attacked(rv.feddane(rv.solvers.GD(0.05, steps=3)), Huge(), parties=(3,))
    with Federation(algorithm, quadratic(double=False), tmp_path, rounds=2) as parts:
        reports = [report for report in parts.run().reports if isinstance(report, PhaseReport)]
        log = [json.loads(line) for line in (tmp_path / "server" / "rounds.jsonl").read_text().splitlines()]
    for report in reports:
        assert {*report.norms} == {*report.asked}
        assert all(norm is None if k == 3 else 0 < norm < 100 for k, norm in report.norms.items())
    assert [{*report.refused} for report in reports if report.phase == 0] == [{3}, {3}]
    assert "is over 10000 times the median" in reports[0].refused[3]
    written = [entry["norms"] for entry in log if entry["event"] == "PhaseReport"]
    assert written == [{str(k): norm for k, norm in report.norms.items()} for report in reports]


def huge_replies(handle):
    """A site that runs another program."""
    def answer(data):
        reply = handle(data)
        if reply.startswith(b"{"):
            return reply
        message = decode(reply)
        if message.kind != "reply":
            return reply
        return encode(replace(message, arrays={name: np.full_like(a, HUGE) for name, a in message.arrays.items()}))

    return answer


@pytest.mark.when_changed
@nightly.parametrize("method", ["fedavg", "{name: NormLimit, inner: fedavg, multiple: null}"],
                     others=nightly.WHEN_CHANGED)
def test_the_lead_reads_which_site_sent_a_huge_reply(tmp_path, method):
    """The setting is in the experiment file. Without a limit the model is lost, and sites answer no saturated model."""
    consortium = Growing(tmp_path)
    text = experiment_from_text(ONE_METHOD.replace("FedAvg: fedavg", f"FedAvg: {method}"), "mine").text
    job = signed(replace(consortium.job(sites=THREE), experiment=text))
    sites = {site: consortium.site(site) for site in THREE}
    handlers = {name: site.handle for name, site in sites.items()}
    transport = InProcess({**handlers, "baden": huge_replies(handlers["baden"])})
    events = []
    with np.errstate(all="ignore"):
        outcome = serve_federation(job, experiment_from_text(text, "mine"), transport, tmp_path / "server",
                                   tmp_path / "out", Watch(events.append))
    for site in sites.values():
        site.close()
    rounds = [event for event in events if isinstance(event, PhaseReport)]
    if method != "fedavg":
        assert [named(event, event.counted) for event in rounds] == [[*THREE]]
        assert outcome["status"] == "stopped"
        assert "phase 1 of round 2" in outcome["message"]
        assert "the site lets out no sum" in outcome["message"]
        return
    assert outcome == {"status": "complete"}
    summary = read_record(tmp_path / "out").plain()
    assert all(named(event, event.counted) == ["aachen", "berlin"] for event in rounds)
    assert all("times the median" in event.refused[event.names.index("baden")] for event in rounds)
    assert summary["methods"]["FedAvg"]["refused"] == {"baden": 3}
    assert "baden (3)" in summary["warnings"][0]
    metrics = consortium.metrics()
    norms = metrics[metrics["metric"] == "update_norm"].set_index(["round", "party"])["value"]
    assert len(norms) == 9
    assert all(np.isfinite(norms[t, k]) == (k != 1) for t, k in norms.index)
    page = redraw_report(tmp_path / "out", anyway=True).read_text()
    assert "Norms of the sites" in page
    assert 'aria-label="FedAvg: norms of the updates"' in page
