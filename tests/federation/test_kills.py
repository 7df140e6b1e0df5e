"""A kill at every step of a plan, over all its messages and file operations: the run continues as if there was none.

The steps are those of an undisturbed run. At a kill, the server and all sites end, and start again from their folders.
"""

import contextlib
import shutil
from functools import partial
from unittest import mock

import jax
import numpy as np
import pytest

import nightly
import resolvent as rv
from federation.hospitals import Hospitals, table
from federation.parts import SEED, quadratic
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.federation.engines.in_process import InProcess, run_in_process
from resolvent.federation.protocol.fitted_regression import read_fit
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.wire import decode
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.site.journal import Journal
from torture.disk import Disk

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

STOPS = 24  # of several hundred file operations
GD = rv.solvers.GD(0.05, steps=3)


class SecureRounds:
    """Rounds in secure sums from which sites may be absent, so that a phase has the steps work, list and reveal."""

    def __init__(self, folder):
        self.folder = folder

    def serve(self, transport):
        with mock.patch("resolvent.federation.engines.in_process.InProcess", transport):
            self.state = run_in_process(FixedPointSums(rv.feddane(GD, mu=1.0)), quadratic(double=False), rounds=2,
                                        folder=self.folder, seed=SEED, secure=SumRules()).state
        return {"status": "complete"}

    def found(self):
        return jax.tree.leaves(self.state)


class Regression(Hospitals):
    """A regression of three hospitals: the rounds of the fit, and the sums of its standard errors."""

    def __init__(self, folder, **settings):
        super().__init__(folder, table(30, more=0), {"formula": "ill ~ age"}, **settings)

    def found(self):
        fit = read_fit(self.folder / "out").result
        return [fit.estimates, fit.table.to_numpy(float)]


PLANS = {"secure rounds": SecureRounds, "regression": Regression,
         "secure regression": partial(Regression, privacy={"secure_sums": True})}


class Killing(InProcess):
    """Ends all processes before a site has a message, or when it has answered: once at each step."""

    def __init__(self, handlers, done, kills):
        super().__init__(handlers)
        self.done, self.kills = done, kills

    def broadcast(self, messages, **times):
        replies = {}
        for name, message in messages.items():
            head = decode(bytes(message))
            step = name, head.kind, head.run, head.round, head.phase
            self._end(step, "before")
            replies[name] = self.handlers[name](bytes(message))
            self._end(step, "after")
        return replies

    def _end(self, step, moment):
        if (*step, moment) not in self.done:
            self.done.add((*step, moment))
            if self.kills(step, moment):
                raise KeyboardInterrupt


def serve(plan, done, kills=lambda step, moment: False):
    return plan.serve(transport=partial(Killing, done=done, kills=kills))


def answers(folder):
    """The replies and scores in the journals of all sites: each has left once."""
    return {path.parent.name: [tuple(entry.get(key) for key in ("kind", "run", "round", "phase"))
                               for entry in Journal(path).entries if entry["kind"] in ("reply", "scores")]
            for path in folder.glob(f"*/{JOURNAL}")}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Name of a plan -> its steps, what it finds, and the answers of the sites, without a kill."""
    runs = {}

    def of(name):
        if name not in runs:
            plan, done = PLANS[name](tmp_path_factory.mktemp("undisturbed")), set()
            assert serve(plan, done)["status"] == "complete"
            runs[name] = done, plan.found(), answers(plan.folder)
        return runs[name]

    return of


def check_same(plan, name, undisturbed):
    _, expected, answered = undisturbed(name)
    for value, like in zip(plan.found(), expected, strict=True):
        np.testing.assert_array_equal(value, like)
    assert answers(plan.folder) == answered


@pytest.mark.when_changed
@nightly.parametrize("name", PLANS, per_commit=2)
def test_a_kill_at_every_message_of_a_plan_changes_nothing(name, undisturbed, tmp_path):
    """A commit kills once at each kind of message of each method, the night before and after every message."""
    steps, *_ = undisturbed(name)
    kinds = {kind for _, kind, *_ in steps}
    assert {"start", "work", "finish"} <= kinds
    assert (name != "secure rounds") or {"list", "reveal"} <= kinds  # a regression needs all sites in each sum
    plan, done, killed, outcome = PLANS[name](tmp_path), set(), set(), None

    def kills(step, moment):
        key = (step, moment) if nightly.IS_NIGHT else step[1:3]
        is_new = key not in killed
        killed.add(key)
        return is_new

    while outcome is None:
        with contextlib.suppress(KeyboardInterrupt):
            outcome = serve(plan, done, kills)
    assert outcome["status"] == "complete"
    assert done == steps
    assert len(killed) == (len(steps) if nightly.IS_NIGHT else len({step[1:3] for step in steps}))
    check_same(plan, name, undisturbed)


@pytest.mark.nightly
@pytest.mark.parametrize("is_torn", [False, True])
@pytest.mark.parametrize("name", PLANS)
def test_a_kill_at_file_operations_of_server_and_sites_changes_nothing(name, is_torn, undisturbed, tmp_path):
    """A step has several, such as between a site's journal and its reply, or the server's log and its record."""
    run, begin, killed = (tmp_path / part for part in ("run", "begin", "killed"))
    run.mkdir()
    plan = PLANS[name](run)
    shutil.copytree(run, begin)
    with Disk(run).watched() as disk:
        serve(plan, set())
    for stop in range(1 + is_torn, len(disk.operations), len(disk.operations) // STOPS):
        shutil.rmtree(run)
        shutil.copytree(begin, run)
        with Disk(run, stop_at=stop, is_torn=is_torn, copy=killed).watched() as stopped:
            serve(plan, set())
        assert stopped.has_stopped
        shutil.rmtree(run)
        killed.rename(run)
        assert serve(plan, set())["status"] == "complete", disk.operations[stop]
        check_same(plan, name, undisturbed)
