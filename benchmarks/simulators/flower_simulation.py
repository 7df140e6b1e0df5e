"""Flower's simulation engine: FedAvg's strategy on a virtual node per party, workers of one core each, over Ray.

FedProx's proximal term lies with the client, as Flower's documentation has it.
"""

import os
import time

from peer import Meter, Work, arguments

meter = Meter()
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import flwr  # noqa: E402
import ray  # noqa: E402
import torch  # noqa: E402
from flower_client import app  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402
from torch_models import export, load, make  # noqa: E402

meter.mark("import")


class GivenCohorts(FedAvg):
    """FedAvg with the workload's cohorts."""

    def __init__(self, cohorts):
        super().__init__(fraction_evaluate=0.0, min_available_nodes=1)
        self.cohorts = cohorts

    def configure_train(self, server_round, arrays, config, grid):
        """A message to each party of the round's cohort."""
        nodes = sorted(grid.get_node_ids())
        return [Message(content=RecordDict({"arrays": arrays, "config": ConfigRecord({"party": int(k)})}),
                        message_type=MessageType.TRAIN, dst_node_id=nodes[k])
                for k in self.cohorts[server_round - 1]]


def main() -> None:
    args = arguments()
    os.environ["BENCHMARK_WORK"] = str(args.work)
    work = Work(args.work)
    model = load(make(work.facts), work.first)
    rounds, parties = len(work.cohorts), len(work.length)
    server = ServerApp()
    meter.mark("data")

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < parties:
            time.sleep(0.05)
        first = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
        result = GivenCohorts(work.cohorts).start(
            grid, ArrayRecord(first), rounds,
            evaluate_fn=lambda done, arrays: meter.round_done(done, rounds) if done else None)
        model.load_state_dict(result.arrays.to_torch_state_dict(), strict=False)
        meter.write(args.out, export(model), torch=torch.__version__, flwr=flwr.__version__, ray=ray.__version__)

    run_simulation(server, app, parties, backend_config={
        "init_args": {"num_cpus": args.processes}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    main()
