"""A round of a federation over NVIDIA FLARE on this machine, and rounds of NVIDIA FLARE itself.

Run in the environment of the extra ``nvflare``:

    python benchmarks/network.py --rounds 50
    python benchmarks/network.py --megabytes 100 --rounds 5
    python benchmarks/network.py --megabytes 1000 --rounds 2 --sites 1 --ways messages

One server and several sites run in processes of their own, connected over loopback with certificates. In one run of
these processes, in alternation, it measures rounds of the engine's own ``broadcast_and_wait`` with an executor that
returns its input (``engine``); the same bytes through the transport of this library (``transport``); and a message with
one array that both sides encode, check and decode (``messages``). ``memory`` is the largest resident memory during a
round beyond that before the first round of any way, divided by the size of one message; at the server also by the
number of sites.

With small messages it also measures, in alternation, rounds of FedAvg on the digits: with stores and checkpoints of
this library (``digits``), and those of NVIDIA FLARE's own FedAvg with a client in NumPy (``NVIDIA FLARE's FedAvg``);
and rounds of Newton's method for a multinomial regression on the same rows (``regression``), without the first one,
which compiles.
Its controller checks its tasks every 0.05 s, and sites ask for tasks every 0.05 s, as ours; NVIDIA FLARE's defaults are
0.5 s and 2 s. ``network_flower.py`` measures the same over Flower.
"""

import argparse
import json
import os
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from nvflare.apis.controller_spec import Task
from nvflare.apis.executor import Executor
from nvflare.apis.shareable import Shareable
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg

from numpy_client import first_model, read_rows, train
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.regression.regression_file import RegressionFile
from resolvent.federation.engines.nvflare.jobs import OUTCOME_FILE, RESULTS_FOLDER, TASK, read_job_text
from resolvent.federation.engines.nvflare.lead import open_session
from resolvent.federation.engines.nvflare.processes import start_engine
from resolvent.federation.engines.nvflare.programs import FederationServer, FederationSite
from resolvent.federation.engines.nvflare.provisioning import make_kits
from resolvent.federation.engines.processes import running
from resolvent.federation.lead.lead import federate, write_sites
from resolvent.federation.lead.rehearsal import _write_tables, prepare_rehearsal, shipped_changes
from resolvent.federation.protocol.connections import read_connections
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.files import read_site
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT, kit_note
from resolvent.federation.protocol.names import ALLOWED_CLASSES, SITE_FILE
from resolvent.federation.protocol.policy import REHEARSAL, VARIABLE
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.wire import Message, decode, encode

LEAD = "lead@example.org"
CLASSES = ("network.RoundTimer", "network.Echo")
FEDAVG_CLASSES = ("network.EngineFedAvg", "network.EngineClient")
REGRESSION_CLASS = "network.RegressionTimer"
REGRESSION = """
data: {party: party}
regression:
  formula: "label ~ `pixel 2,3` + `pixel 2,5` + `pixel 3,4` + `pixel 4,4`"
  family: multinomial
  heterogeneity: false
"""
FEDAVG = "NVIDIA FLARE's FedAvg"
WAYS = ("engine", "transport", "messages")


def memory():
    """The resident memory now, and the largest one since the last call, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")  # forgets the largest value
    return [int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM")]


class RoundTimer(FederationServer):
    """Times rounds of the engine and of the transport with messages of one size."""

    def control_flow(self, abort_signal, fl_ctx):
        self._signal, self._context = abort_signal, fl_ctx
        super().control_flow(abort_signal, fl_ctx)

    def run(self, job, transport, kit, results):
        sites, rounds = transport.parties, {"engine": self._engine_round, "transport": self._transport_round,
                                            "messages": self._message_round}
        outcome = {way: {"seconds": [], "server": [], "site": []} for way in job["ways"]}
        self._ask_for_memory(transport)
        before, _ = memory()
        for number in range(job["rounds"] + 1):
            for way in job["ways"]:
                start = time.monotonic()
                rounds[way](job["bytes"], transport)
                seconds = time.monotonic() - start
                at_server = (memory()[1] - before) / job["bytes"] / len(sites)
                at_site = max(self._ask_for_memory(transport)) / job["bytes"]
                if number:  # the first round starts threads and compiles
                    for name, value in (("seconds", seconds), ("server", at_server), ("site", at_site)):
                        outcome[way][name].append(value)
        return outcome

    def _ask_for_memory(self, transport):
        """The largest memory at each site since the last call, beyond the memory at the first call."""
        replies = transport.broadcast(dict.fromkeys(transport.parties, b"memory"), deadline=300,
                                      quorum=len(transport.parties), grace=0)
        return [json.loads(reply) for reply in replies.values()]

    def _engine_round(self, size, transport):
        self.broadcast_and_wait(Task("message", Shareable({"message": bytes(size)})), self._context,
                                [*transport.parties], min_responses=len(transport.parties), abort_signal=self._signal)

    def _transport_round(self, size, transport):
        message = bytes(size)
        replies = transport.broadcast(dict.fromkeys(transport.parties, message), deadline=600,
                                      quorum=len(transport.parties), grace=0)
        assert len(replies) == len(transport.parties)

    def _message_round(self, size, transport):
        model = np.ones(size // 4, np.float32)
        messages = {site: encode(Message("work", "run", facts={"party": site}, arrays={"model": model}))
                    for site in transport.parties}
        nbytes, model = model.nbytes, None  # the memory of a model is that of the server's state
        replies = transport.broadcast(messages, deadline=600, quorum=len(transport.parties), grace=0)
        assert all(decode(reply).arrays["model"].nbytes == nbytes for reply in replies.values())
        assert len(replies) == len(transport.parties)


class Echo(FederationSite):
    """Returns each message; one in the wire format is decoded and encoded again."""

    _before = None

    def open(self, site, kit):
        return self._answer

    def _answer(self, message):
        if message == b"memory":
            current, largest = memory()
            self._before = current if self._before is None else self._before
            return json.dumps(largest - self._before).encode()
        if message[:8] != b"RSLVMSG1":
            return message
        return encode(Message("reply", "run", arrays=decode(message).arrays))


class EngineFedAvg(FedAvg):
    """NVIDIA FLARE's own FedAvg on the digits. It stores the model after each round, and notes the time."""

    def __init__(self, job):
        content = read_job_text(job)
        super().__init__(num_clients=len(content["sites"]), num_rounds=content["rounds"] + 1, persistor_id="",
                         model=dict(zip(("weight", "bias"), first_model(), strict=True)), task_name=TASK,
                         task_check_period=0.05)
        self._ends = []

    def save_model(self, model):
        super().save_model(model)
        self._ends.append(time.monotonic())

    def run(self):
        super().run()
        folder = Path(self.get_run_dir()) / RESULTS_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        (folder / OUTCOME_FILE).write_text(json.dumps({"seconds": np.diff(self._ends).tolist()}))


class EngineClient(Executor):
    """Trains the digits in NumPy."""

    _rows = None

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        if self._rows is None:
            self._rows, self._random = read_rows(read_site(Path(os.environ[SITE_FILE])).table), np.random.default_rng(0)
        params = FLModelUtils.from_shareable(shareable).params
        weight, bias = train([params["weight"], params["bias"]], *self._rows, self._random)
        return FLModelUtils.to_shareable(FLModel(
            params_type=ParamsType.FULL, params={"weight": weight, "bias": bias},
            meta={"NUM_STEPS_CURRENT_ROUND": len(self._rows[0])}))


_AT = "at"


class RegressionTimer(FederationServer):
    """Runs a regression; instead of its title, a round of the estimates has the time at the server."""

    def report(self, event):
        is_timed = isinstance(event, PhaseReport) and event.method == "estimates"
        super().report(replace(event, method=f"{_AT} {time.monotonic()}") if is_timed else event)


def run_job(session, job, classes, folder):
    number = session.submit("timing", job, *classes)
    while not session.state(number).is_done:
        time.sleep(0.3)
    return session.fetch(number, folder)


def measure_digits(note, session, rehearsal, sites, rounds, repeats, folder):
    """Medians of the seconds of a round of FedAvg: of this library, and of NVIDIA FLARE's own."""
    seconds = {"digits": [], FEDAVG: []}
    for number in range(repeats):
        job = FederationJob("", rehearsal.plan.text, tuple(sites))
        summary = federate(note, rehearsal.plan, folder / f"run-{number}", job, lambda event: None, notify=print)
        seconds["digits"].append(summary["methods"]["fedavg"]["seconds_per_round"])
        job = {"sites": sites, "rounds": rounds}
        outcome = run_job(session, job, FEDAVG_CLASSES, folder / f"fedavg-{number}")
        seconds[FEDAVG].append(statistics.median(outcome["seconds"]))
    return {way: {"seconds": statistics.median(values)} for way, values in seconds.items()}


def measure_regression(note, sites, repeats, folder):
    """Median of the seconds of a round of Newton's method."""
    seconds = []
    for number in range(repeats):
        file = RegressionFile.parse(REGRESSION, "regression.yaml", f"regression-{number}")
        regression, events = FederatedRegression(file, REHEARSAL), []
        job = FederationJob("", regression.text, tuple(sites))
        with patch("resolvent.federation.lead.watchdog.SERVER_CLASS", REGRESSION_CLASS):
            federate(note, regression, folder / file.name, job, events.append, notify=print)
        ends = [float(event.method.removeprefix(_AT)) for event in events if event.method.startswith(_AT)]
        seconds += np.diff(ends).tolist()
    return {"seconds": statistics.median(seconds)}


def measure(rounds, size, count, repeats, ways, folder):
    changes = [*shipped_changes("digits"), f"data.parties={count}", f"rounds={rounds}", f"evaluate_every={rounds}",
               "algorithms=[fedavg]"]
    rehearsal = prepare_rehearsal(ExperimentFile.load("digits", changes))
    sites = [*rehearsal.sites]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kits = make_kits(folder / "kits", name="timing", host="localhost", port=port, sites=sites, lead=LEAD)
    write_sites(kits[LEAD], "timing", sites)
    files = _write_tables(rehearsal, folder / "sites")
    variables = {VARIABLE: REHEARSAL.name, "PYTHONPATH": str(Path(__file__).parent)}
    allowed = (*ALLOWED_CLASSES, *CLASSES, *FEDAVG_CLASSES, REGRESSION_CLASS)
    with ExitStack() as stack:
        server = stack.enter_context(running(start_engine(kit_note(kits[SERVER_KIT], "server"), allowed, variables)))
        for site in sites:
            stack.enter_context(running(start_engine(kit_note(kits[site], "site"), allowed,
                                                     {**variables, SITE_FILE: str(files[site])})))
        for site in sites:
            server.wait_for(lambda site=site: site in read_connections(kits[SERVER_KIT]), 120)
        note = kit_note(kits[LEAD], "person")
        with open_session(note) as session:
            job = {"sites": sites, "rounds": rounds, "bytes": size, "ways": ways}
            outcome = run_job(session, job, CLASSES, folder / "timing")
            result = {way: {"seconds": statistics.median(outcome[way]["seconds"])} for way in ways}
            if size >= 10**6:
                for way in ways:
                    result[way] |= {"memory at the server": max(outcome[way]["server"]),
                                    "memory at a site": max(outcome[way]["site"])}
            else:
                result["regression"] = measure_regression(note, sites, repeats, folder)
                result |= measure_digits(note, session, rehearsal, sites, rounds, repeats, folder)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--megabytes", type=float, default=0.001, help="size of a message in each direction")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="runs of FedAvg on the digits")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS],
                        help="which messages; with one of them, memory is that of this way alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.rounds, int(options.megabytes * 1e6), options.sites, options.repeats,
                         options.ways, Path(folder))
    if "engine" in result:
        for way in result.values():
            way["/ engine"] = way["seconds"] / result["engine"]["seconds"]
    print(json.dumps({**{way: {name: round(value, 4) for name, value in values.items()}
                         for way, values in result.items()},
                      "rounds": options.rounds, "megabytes": options.megabytes, "sites": options.sites}, indent=2))


if __name__ == "__main__":
    main()
