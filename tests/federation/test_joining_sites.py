"""Parties that join and leave between rounds: the simulator repeats the run from its record."""

import jax
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.parts import SEED, Federation, quadratic
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import EvaluationReport, FinishReport, MembersReport, PhaseReport
from resolvent.federation.protocol.exchange import FederationStoppedError
from resolvent.federation.protocol.wire import decode
from resolvent.federation.server.record_metrics import recorded_participation
from resolvent.testing import assert_close

GD = rv.solvers.GD(0.05, steps=3)
ROUNDS = 6
FOUNDERS, ALL = ("site 0", "site 1", "site 3"), tuple(f"site {k}" for k in range(5))


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def run_until(parts, names, round_=None, phase=0):
    """Run with the parties of these names, until the process of the server ends after a phase of a round."""
    def observe(report):
        if isinstance(report, PhaseReport) and (report.round, report.phase) == (round_, phase):
            raise KeyboardInterrupt

    parts.transport = InProcess({name: parts._handler(name) for name in names})
    try:
        return parts.run(observe)
    except KeyboardInterrupt:
        return None


@pytest.mark.when_changed
@pytest.mark.parametrize("participation", [
    pytest.param(rv.participation.Full(), id="full", marks=pytest.mark.nightly),
    pytest.param(rv.participation.Uniform(2, weighting="uniform"), id="sampled")])
def test_parties_that_join_and_leave_are_repeated_in_the_simulator(participation, tmp_path):
    """Two sites join after round 2, one leaves after round 4; party states and a solver's memory are compared too."""
    algorithm = rv.fedavg_plus(rv.solvers.adam(0.05, batch_size=4, keep=True), sigma=0.1)
    with Federation(algorithm, quadratic(), tmp_path, rounds=ROUNDS, participation=participation) as parts:
        run_until(parts, FOUNDERS, 1)
        run_until(parts, ("site 4", *FOUNDERS, "site 2"), 3)
        result = run_until(parts, ("site 2", "site 4", "site 1", "site 0"))
        # Ids are those of the names in the problem: the order in which the parties joined is another one.
        order = [ALL.index(name) for name in result.record.parties]
        assert result.record.parties == (*FOUNDERS, "site 4", "site 2")
        assert result.record.members == ((0, (0, 1, 2)), (2, (0, 1, 2, 3, 4)), (4, (0, 1, 3, 4)))
        changes = [(r.round, r.joined, r.left) for r in result.reports if isinstance(r, MembersReport)]
        assert changes == [(2, ("site 4", "site 2"), ()), (4, (), ("site 3",))]
        replayed = recorded_participation(result.record, result.reports, SEED, participation)
        state = rv.simulate(algorithm, in_order(order), rounds=ROUNDS, seed=SEED, participation=replayed,
                            progress=False, evaluate_every=ROUNDS).state
        assert_close(result.state, state.server, 1e-11)
        names, parts.names = parts.names, result.record.parties
        assert_close(parts.party_states(result.record), state.parties, 1e-11)
        parts.names = names
        evaluation = [r for r in result.reports if isinstance(r, EvaluationReport)][-1]
        assert sorted(evaluation.personal) == [0, 1, 3, 4]
        assert result.reports[-1].stored == (0, 1, 3, 4)
        assert isinstance(result.reports[-1], FinishReport)


def in_order(order):
    """The quadratics with the parties in another order."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(5, 7, 3)) / 3
    b = rng.normal(size=(5, 7))
    return rv.problems.QuadraticProblem.least_squares(jax.numpy.asarray(a[order]), jax.numpy.asarray(b[order]))


@pytest.mark.when_changed
@pytest.mark.parametrize("algorithm", [rv.scaffold(GD), rv.fedpi(GD, eta=0.5), rv.feddyn(GD)],
                         ids=["a sum of controls", "a point for each party", "a sum of corrections"])
def test_a_server_with_sums_over_the_parties_keeps_its_parties(algorithm, tmp_path):
    with Federation(algorithm, quadratic(), tmp_path, rounds=2) as parts:
        run_until(parts, FOUNDERS, 0)
        with pytest.raises(InputError, match="the sites of a run cannot change with this algorithm"):
            run_until(parts, ALL)
        assert run_until(parts, FOUNDERS).record.round == 2


@pytest.mark.when_changed
def test_a_party_that_leaves_within_a_round_does_not_stop_it(tmp_path):
    """It leaves between the two phases of FedDANE: the round ends with the others. A simulation cannot repeat it."""
    with Federation(rv.feddane(GD), quadratic(), tmp_path, rounds=2) as parts:
        run_until(parts, ALL, 0, 0)
        result = run_until(parts, FOUNDERS)
    phases = [report for report in result.reports if isinstance(report, PhaseReport)]
    assert [report.counted for report in phases] == [(0, 1, 2, 3, 4), (0, 1, 3), (0, 1, 3), (0, 1, 3)]
    assert phases[1].absent == {2: "it has left the federation", 4: "it has left the federation"}
    assert result.record.members == ((0, (0, 1, 2, 3, 4)), (1, (0, 1, 3)))
    with pytest.raises(InputError, match="site 2 answered the first phase and not phase 2"):
        recorded_participation(result.record, result.reports, SEED)


@pytest.mark.when_changed
def test_a_party_that_joins_must_answer(tmp_path):
    with Federation(rv.fedavg(GD), quadratic(), tmp_path, rounds=2) as parts:
        run_until(parts, FOUNDERS, 0)
        handler = parts._handler
        parts._handler = lambda name: (lambda message: b"") if name == "site 4" else handler(name)
        with pytest.raises(FederationStoppedError, match="the start, in which every party must answer: 1 parties"):
            run_until(parts, ALL)
        parts._handler = handler
        result = run_until(parts, ALL)
        assert result.record.members == ((0, (0, 1, 2)), (1, (0, 1, 2, 3, 4)))
        assert decode(parts.parties["site 4"].handle(b"")).kind == "refusal"


class LostRecord(Federation):
    """A federation whose server ends after the replies to a phase have arrived, before they are stored."""

    def run_until_replies(self, names, round_):
        write = self.server_store.write

        def end(store, record):
            if record.round == round_:
                raise KeyboardInterrupt
            write(store, record)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.server_store, "write", end)
            run_until(self, names)


@pytest.mark.when_changed
@nightly.parametrize("second", [("site 4", *FOUNDERS[1:]), FOUNDERS[1:]], ids=["leaves and joins", "leaves"],
                     others=nightly.WHEN_CHANGED)
def test_members_that_change_the_work_of_a_round_that_was_sent_begin_a_round_later(second, tmp_path):
    """The draw of stragglers depends on the members. Parties that have answered a round refuse another effort."""
    algorithm = rv.fedprox(rv.solvers.GD(0.05, steps=4), mu=0.1)
    participation = rv.participation.Stragglers(rv.participation.Full(), share=0.5)
    with LostRecord(algorithm, quadratic(), tmp_path, rounds=4, participation=participation) as parts:
        parts.run_until_replies(FOUNDERS, 2)
        assert parts.parties["site 1"]._record.round == 1
        result = run_until(parts, second)
        order = [ALL.index(name) for name in result.record.parties]
        assert [first for first, _ in result.record.members] == [0, 2]
        of_round = {report.round: report for report in result.reports if isinstance(report, PhaseReport)}
        assert of_round[1].absent == {0: "it has left the federation"}
        assert of_round[1].counted == (1, 2)
        assert of_round[2].counted == tuple(sorted(result.record.parties.index(name) for name in second))
        replayed = recorded_participation(result.record, result.reports, SEED, participation)
        state = rv.simulate(algorithm, in_order(order), rounds=4, seed=SEED, participation=replayed, progress=False,
                            evaluate_every=4).state
        assert_close(result.state, state.server, 1e-11)
