"""What Flower's workers run: one party's local work. A module of its own, so that a worker keeps the data."""

import os
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peer import Work
from torch_models import load, local_sgd, make, tensors

app = ClientApp()


@cache
def loaded():
    """The workload and a model, once per worker."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(os.getpid())
    work = Work(Path(os.environ["BENCHMARK_WORK"]))
    return work, load(make(work.facts), work.first)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local work from the shared model."""
    work, model = loaded()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict(), strict=False)
    x, y = tensors(*work.party(message.content["config"]["party"]), work.facts)
    local_sgd(model, x, y, work.facts)
    trained = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    return Message(content=RecordDict({"arrays": ArrayRecord(trained),
                                       "metrics": MetricRecord({"num-examples": len(y)})}), reply_to=message)
