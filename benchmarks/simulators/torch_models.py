"""The workloads' models in PyTorch, with parameters that go to and from ours."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["export", "load", "local_sgd", "make", "tensors"]


class CNN(nn.Module):
    """Two convolutions 5x5 with ReLU and 2x2 max-pooling, then two affine layers."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.c0, self.c1 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.l0, self.l1 = nn.Linear(320, 20), nn.Linear(20, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images [B, 28, 28]."""
        h = nn.functional.max_pool2d(nn.functional.relu(self.c0(x[:, None])), 2)
        h = nn.functional.max_pool2d(nn.functional.relu(self.c1(h)), 2)
        return self.l1(nn.functional.relu(self.l0(h.flatten(1))))  # type: ignore[no-any-return]


class LSTM(nn.Module):
    """Embedded characters through two LSTM layers of 100; an affine layer at the end.

    The second bias of nn.LSTM is fixed: it holds the one that ours adds to the forget gate.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(classes, 8), nn.LSTM(8, 100, 2, batch_first=True)
        self.output = nn.Linear(100, classes)
        for i in (0, 1):
            fixed = getattr(self.lstm, f"bias_hh_l{i}")
            fixed.requires_grad_(False)
            fixed.copy_(torch.repeat_interleave(torch.tensor([0.0, 1, 0, 0]), 100))

    def forward(self, x: Tensor) -> Tensor:
        """Logits of sequences [B, T]."""
        states, _ = self.lstm(self.embedding(x))
        return self.output(states[:, -1])  # type: ignore[no-any-return]


def make(facts: dict[str, Any]) -> nn.Module:
    """A model of the workload, its parameters whatever PyTorch begins with."""
    if facts["model"] == "cnn":
        return CNN(facts["classes"])
    if facts["model"] == "lstm":
        return LSTM(facts["classes"])
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(facts["shape"])), facts["classes"]))


def _names(model: nn.Module) -> dict[str, str]:
    """Name of a parameter in our model -> its name in PyTorch's."""
    if isinstance(model, CNN):
        pairs = {"convolution 0": "c0", "convolution 1": "c1", "layer 0": "l0", "layer 1": "l1"}
    elif isinstance(model, LSTM):
        lstm = {f"lstm {i}.{ours}": f"lstm.{theirs}_l{i}" for i in (0, 1)
                for ours, theirs in (("input", "weight_ih"), ("state", "weight_hh"), ("bias", "bias_ih"))}
        return lstm | {"embedding": "embedding.weight", "output.weight": "output.weight", "output.bias": "output.bias"}
    else:
        return {"weight": "1.weight", "bias": "1.bias"}
    return {f"{a}.{part}": f"{b}.{part}" for a, b in pairs.items() for part in ("weight", "bias")}


def _turned(ours: str, model: nn.Module, value: Any, back: bool) -> Any:
    """Filters are [k, k, in, out] in ours, an LSTM's weights [in, out]; PyTorch flattens [channels, rows, columns]."""
    if isinstance(model, LSTM) and ours.endswith((".input", ".state")):
        return value.T
    if isinstance(model, CNN) and value.ndim == 4:
        return np.transpose(value, (2, 3, 1, 0) if back else (3, 2, 0, 1))
    if isinstance(model, CNN) and ours == "layer 0.weight":
        shape, order = ((20, 20, 4, 4), (0, 2, 3, 1)) if back else ((20, 4, 4, 20), (0, 3, 1, 2))
        return np.transpose(value.reshape(shape), order).reshape(20, 320)
    return value


@torch.no_grad()
def load(model: nn.Module, first: dict[str, np.ndarray]) -> nn.Module:
    """Give a model our parameters."""
    theirs = dict(model.named_parameters())
    for ours, name in _names(model).items():
        theirs[name].copy_(torch.from_numpy(np.ascontiguousarray(_turned(ours, model, first[ours], False))))
    return model


def export(model: nn.Module) -> dict[str, np.ndarray]:
    """A model's parameters as ours."""
    theirs = dict(model.named_parameters())
    return {ours: _turned(ours, model, theirs[name].detach().numpy(), True) for ours, name in _names(model).items()}


def tensors(x: np.ndarray, y: np.ndarray, facts: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Samples as PyTorch wants them."""
    inputs = torch.from_numpy(x)
    return (inputs.long() if facts["tokens"] else inputs), torch.from_numpy(y).long()


def local_sgd(model: nn.Module, x: Tensor, y: Tensor, facts: dict[str, Any]) -> None:
    """Epochs of shuffled minibatches by plain SGD, with the proximal term to where it starts."""
    params = [p for p in model.parameters() if p.requires_grad]
    rate, mu, batch = facts["learning_rate"], facts["mu"], facts["batch"]
    start = [p.detach().clone() for p in params] if mu else []
    for _ in range(facts["epochs"]):
        for at in torch.randperm(len(y)).split(batch):
            loss = nn.functional.cross_entropy(model(x[at]), y[at])
            grads = torch.autograd.grad(loss, params)
            with torch.no_grad():
                if mu:
                    torch._foreach_mul_(params, 1 - rate * mu)
                    torch._foreach_add_(params, start, alpha=rate * mu)
                torch._foreach_add_(params, grads, alpha=-rate)
