"""Resolvent as a user runs it: ``rv.simulate`` with the automatic scheduler."""

import os
import socket
import subprocess
import sys

from peer import Meter, Work, arguments


def in_processes(count: int) -> int:
    """Start this program ``count`` times, connected over the loopback; the first process writes the results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    common = os.environ | {"BENCHMARK_COORDINATOR": address, "BENCHMARK_PROCESSES": str(count)}
    started = [subprocess.Popen([sys.executable, *sys.argv], env=common | {"BENCHMARK_PROCESS": str(i)})
               for i in range(count)]
    return max(abs(process.wait()) for process in started)


args = arguments()
if args.processes > 1 and "BENCHMARK_PROCESS" not in os.environ:
    sys.exit(in_processes(args.processes))

meter = Meter()

import jax  # noqa: E402

if args.processes > 1:
    jax.distributed.initialize(os.environ["BENCHMARK_COORDINATOR"], args.processes,
                               int(os.environ["BENCHMARK_PROCESS"]))

import numpy as np  # noqa: E402
from workloads import algorithm_of, data_of, model_of, participation_of  # noqa: E402

import resolvent as rv  # noqa: E402
from resolvent.math import tree  # noqa: E402

meter.mark("import")


def main() -> None:
    """Run all rounds in two chunks; the second is timed."""
    work = Work(args.work)
    facts = work.facts
    data, algorithm, participation = data_of(work), algorithm_of(facts), participation_of(work)
    meter.mark("data")

    def progress(done: int, rounds: int) -> None:
        if done == work.half:
            meter.mark("first_chunk")

    result = rv.simulate(algorithm, model_of(facts), data, rounds=2 * work.half, seed=0, evaluate_every=work.half,
                         participation=participation, progress=progress)
    if jax.process_index() == 0:  # other processes report no progress
        per_round = result.facts["seconds_per_round"][-1]
        meter.seconds |= {"round": per_round, "round_cpu": result.facts["cpu_per_round"][-1],
                          "first_round": meter.seconds.pop("first_chunk") - (work.half - 1) * per_round}
        model = {name: np.asarray(leaf) for name, leaf in tree.named_leaves(result.server_model)}
        meter.write(args.out, model, jax=jax.__version__, devices=len(jax.devices()))


if __name__ == "__main__":
    main()
