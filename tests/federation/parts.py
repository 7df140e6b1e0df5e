"""A federation in one process whose parts tests can change: transport, stores, and parties that start again."""

from contextlib import ExitStack
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

import resolvent as rv
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.exchange import RoundRules
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.stores import PartyStore, ServerStore
from resolvent.federation.server.coordinator import Coordinator
from resolvent.federation.site.party import Party
from resolvent.simulator.states import Federation as States
from resolvent.testing import assert_close, python_rounds

SEED, ROUNDS = 7, 3


def limits(**changes):
    """What a site allows that allows everything else."""
    return replace(NO_LIMITS, **changes)


@cache
def quadratic(parties=5, double=True):
    """Strongly convex quadratics, which compile fast."""
    rng = np.random.default_rng(1)
    a = rng.normal(size=(parties, 7, 3)) / 3
    with jax.enable_x64(double):
        return rv.problems.QuadraticProblem.least_squares(jnp.asarray(a), jnp.asarray(rng.normal(size=(parties, 7))))


@cache
def classification(double=True):
    """Five parties of different sizes; one has a single sample."""
    rng = np.random.default_rng(0)
    sizes = (1, 5, 9, 4, 6)
    x = [rng.normal(k / 3, 1, size=(n, 3)) for k, n in enumerate(sizes)]
    y = [rng.integers(0, 3, n) for n in sizes]
    data = rv.FederatedData.from_arrays(x, y, validation=0, test=0, classes=["0", "1", "2"])
    with jax.enable_x64(double):
        return rv.problems.LearningProblem(rv.models.logistic(3, 3), data, block=4)


class RecordingStore(ServerStore):
    """A store that remembers all records that were written."""

    def __init__(self, folder):
        super().__init__(folder)
        self.records = []

    def write(self, record):
        super().write(record)
        copy = jax.tree.map(jnp.copy, record.state)  # the next step uses the memory of the state
        self.records.append(record._replace(state=copy))


class Federation:
    """The parts of a federation in one process; a party or the server can be started again from its folder."""

    def __init__(self, algorithm, problem, folder, *, rounds=ROUNDS, transport=InProcess, limits=None, rules=None,
                 server_store=RecordingStore, party_store=PartyStore, **settings):
        self.algorithm, self.problem, self.folder, self.rounds = algorithm, problem, folder, rounds
        self.limits, self.rules, self.settings = limits or NO_LIMITS, rules or RoundRules(), settings
        self.server_store, self.party_store = server_store, party_store
        self.names = tuple(f"site {k}" for k in range(problem.parties))
        self._exit = ExitStack()
        self.parties, self.stores = {}, {}
        for k in range(problem.parties):
            self.start_party(k)
        self.transport = transport({name: self._handler(name) for name in self.names})
        self.store = None

    def _handler(self, name):
        return lambda message: self.parties[name].handle(message)

    def start_party(self, k, **settings):
        """Start a party, or start it again from its folder."""
        name = self.names[k]
        if name in self.stores:
            self.stores[name].close()
        self.stores[name] = self._exit.enter_context(self.party_store(self.folder / name))
        self.parties[name] = Party(self.algorithm, self.problem.of_party(k, is_padded=True), self.stores[name],
                                   **{"rounds": self.rounds, "name": name, "limits": self.limits, "policy": REHEARSAL,
                                      **settings})

    def run(self, observe=None, **settings):
        """Start the server, or start it again, and run to the end."""
        with self.server_store(self.folder / "server") as self.store:
            coordinator = Coordinator(self.algorithm, self.problem, self.transport, self.store, **{
                "rounds": self.rounds, "seed": SEED, "rules": self.rules, "evaluate_every": self.rounds,
                "policy": REHEARSAL, **self.settings, **settings})
            return coordinator.run(observe)

    def party_states(self, record):
        """The states of the parties, stacked, when the server has written a record."""
        states = [self.parties[name]._record.settled(record.counted.get(k), record.refused.get(k))
                  for k, name in enumerate(self.names)]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *states)

    def close(self):
        self._exit.close()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def check_trajectory(algorithm, problem, participation, folder):
    """The server's state and all party states after every round are those of the plain Python loop."""
    states = []

    def observe(report):
        if isinstance(report, PhaseReport) and federation.store.records[-1].phase == 0:
            record = federation.store.records[-1]
            states.append(States(jax.tree.map(np.asarray, record.state), federation.party_states(record)))

    with Federation(algorithm, problem, folder, participation=participation) as federation:
        federation.run(observe)
    expected = python_rounds(algorithm, problem, participation, SEED, ROUNDS)[1:]
    assert len(states) == len(expected)
    for state, like in zip(states, expected, strict=True):
        assert jax.tree.structure(state) == jax.tree.structure(like)
        assert_close(state, like, 1e-11)
