"""The memory of a federation's server when the model is large.

    python benchmarks/server_memory.py --megabytes 100 --sites 3

The server runs rounds of FedAvg and evaluations in this process, and the sites, which train and store their states, run
in another one, so that no memory of theirs counts. Messages go through a socket. ``asked``, ``stepped`` and
``evaluated`` are the largest resident memory beyond that before the run, divided by the size of the model: from the
question of a round to the last reply, from there to the stored state, and during an evaluation. ``between`` is what
stays after a round. ``of replies`` is the largest of all divided by the size of all replies of a round: a server that
keeps its state and each reply once needs (sites + 1) / sites.
"""

import argparse
import json
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

import resolvent as rv
from resolvent.federation.protocol.events import EvaluationReport, PhaseReport
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.protocol.stores import PartyStore, ServerStore
from resolvent.federation.protocol.transport import Transport
from resolvent.federation.server.coordinator import Coordinator
from resolvent.federation.site.party import Party

CLASSES, ROWS = 10, 5
WARM_UP = 1  # MB of the model of a first run, which loads and compiles


def memory():
    """The resident memory now, and the largest one since the last call, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest value
    return [int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]


def method(megabytes):
    """FedAvg, and a logistic model of a size in MB."""
    return (rv.fedavg(rv.solvers.SGD(0.001, batch_size=ROWS, epochs=1)),
            rv.models.logistic(megabytes * 10**6 // (4 * CLASSES) - 1, CLASSES))


def rows(features):
    """The rows of a site."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3 * ROWS, features), np.float32)
    return rv.FederatedData.from_arrays([x], [np.arange(3 * ROWS) % CLASSES], validation=ROWS / 15, test=ROWS / 15)


def answer(connection, folder, megabytes, names, rounds):
    """The process of the sites: one message after the other."""
    algorithm, model = method(megabytes)
    problem = rv.problems.LearningProblem(model, rows(megabytes * 10**6 // (4 * CLASSES) - 1))
    sites = {name: Party(algorithm, problem.of_party(0, is_padded=True), PartyStore(Path(folder) / name),
                         rounds=rounds, name=name, policy=REHEARSAL) for name in names}
    while (name := connection.recv()) is not None:
        connection.send_bytes(sites[name].handle(connection.recv_bytes()))


class Socket(Transport):
    """Sends each message to the process of the sites."""

    def __init__(self, connection, names):
        self.parties, self._connection, self.asked = names, connection, 0

    def broadcast(self, messages, *, deadline, quorum, grace):
        replies = {}
        for name, message in messages.items():
            self._connection.send(name)
            self._connection.send_bytes(bytes(message))
            del message
            replies[name] = self._connection.recv_bytes()
        self.asked = memory()[1]
        return replies

    def late_replies(self):
        return []


def measure(megabytes, sites, rounds):
    """The figures of a run."""
    names, context = tuple(f"site {k}" for k in range(sites)), multiprocessing.get_context("spawn")
    server_end, sites_end = context.Pipe()
    figures = {"asked": [], "stepped": [], "evaluated": [], "between": []}
    with tempfile.TemporaryDirectory() as folder, ServerStore(Path(folder) / "server") as store:
        process = context.Process(target=answer, args=(sites_end, folder, megabytes, names, rounds), daemon=True)
        process.start()
        algorithm, model = method(megabytes)
        transport = Socket(server_end, names)
        coordinator = Coordinator(algorithm, model.init, transport, store, rounds=rounds, policy=REHEARSAL,
                                  evaluate_every=1)
        before = memory()[0]

        def observe(report):
            resident, largest = memory()
            if isinstance(report, PhaseReport):
                figures["asked"].append(transport.asked), figures["stepped"].append(largest)
                figures["between"].append(resident)
            elif isinstance(report, EvaluationReport):
                figures["evaluated"].append(max(transport.asked, largest))

        coordinator.run(observe)
        server_end.send(None)
        process.join()
    size = megabytes * 10**6
    result = {name: round((max(values[1:]) - before) / size, 2) for name, values in figures.items()}
    return result | {"of replies": round(max(result.values()) / sites, 2)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--sites", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for sites in arguments.sites:
        measure(WARM_UP, sites, 2)
        print(json.dumps({"megabytes": arguments.megabytes, "sites": sites,
                          **measure(arguments.megabytes, sites, arguments.rounds)}), flush=True)


if __name__ == "__main__":
    main()
