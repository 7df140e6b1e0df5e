"""pfl: its own FedAvg and FedProx, simulated by one process, or by several that share the cohort, as its guide says."""

import os
import socket
import subprocess
import sys

from peer import Meter, Work, arguments


def in_processes(count: int) -> int:
    """Start ``count`` processes of this program, joined as pfl's guide says; the first one writes the results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    addresses = ",".join(f"localhost:{port + i}" for i in range(count))
    started = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {
        "PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": str(i)}) for i in range(count)]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    args = arguments()
    if args.processes > 1 and "PFL_WORKER_RANK" not in os.environ:
        sys.exit(in_processes(args.processes))
    meter = Meter()

import numpy as np  # noqa: E402
import pfl  # noqa: E402
import torch  # noqa: E402
from pfl.aggregate.simulate import SimulatedBackend  # noqa: E402
from pfl.aggregate.weighting import WeightByDatapoints  # noqa: E402
from pfl.algorithm.base import NNAlgorithmParams  # noqa: E402
from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: E402
from pfl.algorithm.fedprox import FedProx, FedProxParams  # noqa: E402
from pfl.callback.base import TrainingProcessCallback  # noqa: E402
from pfl.data.federated_dataset import FederatedDataset  # noqa: E402
from pfl.data.pytorch import PyTorchTensorDataset  # noqa: E402
from pfl.hyperparam import NNTrainHyperParams  # noqa: E402
from pfl.metrics import Metrics  # noqa: E402
from pfl.model.pytorch import PyTorchModel  # noqa: E402
from torch_models import export, load, make, tensors  # noqa: E402


class Shuffled(PyTorchTensorDataset):
    """A user's samples in a new order every epoch, which pfl leaves to the data set."""

    def iter(self, batch_size):
        for at in torch.randperm(len(self)).split(batch_size):
            yield [part[at] for part in self.raw_data]


class Cohorts:
    """The workload's users, round after round. They repeat after the last round, because pfl draws thousands ahead."""

    def __init__(self, cohorts):
        self.users, self.at = cohorts.ravel().tolist(), 0

    def __call__(self):
        user = self.users[self.at % len(self.users)]
        self.at += 1
        return user


class Rounds(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self, rounds):
        self.rounds = rounds

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        meter.round_done(central_iteration + 1, self.rounds)
        return False, Metrics()


def with_loss(model):
    """What pfl asks of a module: its loss and metrics of a batch."""
    model.loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    model.metrics = lambda x, y: {}
    return model


def main() -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)  # noqa: NPY002 - pfl's workers must draw alike
    work = Work(args.work)
    facts = work.facts
    parts = [tensors(*work.party(k), facts) for k in range(len(work.length))]
    data = FederatedDataset(lambda user: Shuffled(parts[user], user_id=user), Cohorts(work.cohorts),
                            dict(enumerate(work.length.tolist())))
    module = with_loss(load(make(facts), work.first))
    trained = [p for p in module.parameters() if p.requires_grad]
    model = PyTorchModel(module, lambda params, lr: torch.optim.SGD([p for p in params if p.requires_grad], lr),
                         torch.optim.SGD(trained, 1.0))
    rounds, cohort = work.cohorts.shape
    # Nothing is evaluated: of the iterations only one before the first one would be.
    common = {"central_num_iterations": rounds, "evaluation_frequency": 10**9, "train_cohort_size": cohort,
              "val_cohort_size": 0}
    algorithm, params = (FedProx(), FedProxParams(mu=facts["mu"], **common)) if facts["mu"] else (
        FederatedAveraging(), NNAlgorithmParams(**common))
    train = NNTrainHyperParams(local_batch_size=facts["batch"], local_num_epochs=facts["epochs"],
                               local_learning_rate=facts["learning_rate"])
    meter.mark("data")
    algorithm.run(params, SimulatedBackend(data, data, [WeightByDatapoints()]), model, train,
                  callbacks=[Rounds(rounds)], send_metrics_to_platform=False)
    if os.environ.get("PFL_WORKER_RANK", "0") == "0":
        meter.write(args.out, export(module), torch=torch.__version__, pfl=pfl.__version__)
    sys.stdout.flush()
    os._exit(0)  # its sampling process would be waited for


if __name__ == "__main__":
    meter.mark("import")
    main()
