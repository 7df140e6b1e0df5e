"""FedAvg as a plain PyTorch loop, for a model of this file: torch_loop.py MODEL SAMPLES ROUNDS THREADS WEIGHTS DEVICE.

DEVICE is cpu, the default, or cuda. Prints JSON. The first parameters are those of the file WEIGHTS, which
``ours.py`` has written.
"""

import copy
import json
import sys

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from workload import BATCH, LEARNING_RATE, PARTIES, SHAPES, Meter, random_samples


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 5, padding=2), nn.Conv2d(32, 64, 5, padding=2)
        self.hidden, self.output = nn.Linear(3136, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in (self.first, self.second):
            x = functional.max_pool2d(functional.relu(convolution(x)), 2)
        return self.output(functional.relu(self.hidden(x.flatten(1))))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])
        is_same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(h)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.GroupNorm(8, 16)
        sizes = [(16, 16, 1), (16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1),
                 (64, 64, 1)]
        self.blocks, self.output = nn.Sequential(*(Block(*size) for size in sizes)), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.blocks(functional.relu(self.norm(self.first(x)))).mean((2, 3)))


class Series(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([nn.Conv1d(9, 64, 5, padding=2), nn.Conv1d(64, 64, 5, padding=2),
                                           nn.Conv1d(64, 128, 3, padding=1)])
        self.output = nn.Linear(128, 6)

    def forward(self, x: Tensor) -> Tensor:
        for convolution in self.convolutions[:2]:
            x = functional.max_pool1d(functional.relu(convolution(x)), 2)
        return self.output(functional.relu(self.convolutions[2](x)).mean(2))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.Module]) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(80, 8), nn.Linear(128, 80)
        self.cell = cell(8, 128, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.cell(self.embedding(tokens))[0][:, -1])


class TransformerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(64), nn.LayerNorm(64)])
        self.inputs, self.outputs = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)
        self.hidden, self.last = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        batch, times, width = x.shape
        query, key, value = self.inputs(self.norms[0](x)).view(batch, times, 3, 4, 16).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.outputs(attention.transpose(1, 2).reshape(batch, times, width))
        return x + self.last(functional.gelu(self.hidden(self.norms[1](x)), approximate="tanh"))


class Transformer(nn.Module):
    def __init__(self, outputs: int = 10) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(1000, 64), nn.Linear(64, outputs)
        self.positions = nn.Parameter(0.02 * torch.randn(64, 64))
        self.blocks = nn.Sequential(TransformerBlock(), TransformerBlock())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.features(tokens).mean(1))

    def features(self, tokens: Tensor) -> Tensor:
        return self.blocks(self.embedding(tokens) + self.positions)


class Language(Transformer):
    def __init__(self) -> None:
        super().__init__(1000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.features(tokens))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(20000, 64), nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens).mean(1))


class Logistic(nn.Module):
    """With one output, and zeros as in the library's model."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(5000, 1)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(x)


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)),
    "logistic": Logistic,
    "cnn": CNN,
    "resnet": ResNet,
    "series": Series,
    "gru": lambda: Recurrent(nn.GRU),
    "lstm": lambda: Recurrent(nn.LSTM),
    "transformer": Transformer,
    "language": Language,
    "bag": Bag,
}


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy; with one output, the binary one."""
    if outputs.shape[1] == 1:
        return functional.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype))
    return functional.cross_entropy(outputs.flatten(0, -2), y.flatten())  # of samples, or of their tokens


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One epoch of minibatches without replacement."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for rows in torch.randperm(len(x)).split(BATCH):
        optimizer.zero_grad()
        loss(model(x[rows]), y[rows]).backward()
        optimizer.step()


def freeze_second_bias(model: nn.Module) -> None:
    """Train only the biases that an Equinox cell has; PyTorch's recurrent layers have a second bias for each gate."""
    cell = getattr(model, "cell", None)
    if isinstance(cell, nn.LSTM):
        cell.bias_hh_l0.requires_grad_(False)
    elif isinstance(cell, nn.GRU):
        trained = torch.arange(3 * cell.hidden_size) >= 2 * cell.hidden_size
        cell.bias_hh_l0.register_hook(lambda gradient: gradient * trained)


def load(model: nn.Module, path: str) -> None:
    """Set the parameters to those of a file."""
    arrays = np.load(path)
    with torch.no_grad():
        for parameter, array in zip(model.parameters(), arrays.values(), strict=True):
            parameter.copy_(torch.from_numpy(array).reshape(parameter.shape))


def run_round(shared: nn.Module, x: Tensor, y: Tensor) -> None:
    """One round of FedAvg."""
    models = []
    for part_x, part_y in zip(x.chunk(PARTIES), y.chunk(PARTIES), strict=True):
        models.append(copy.deepcopy(shared))
        freeze_second_bias(models[-1])
        train(models[-1], part_x, part_y)
    with torch.no_grad():
        for parameter, *of_parties in zip(shared.parameters(), *(m.parameters() for m in models), strict=True):
            parameter.copy_(sum(of_parties) / PARTIES)


def main() -> None:
    name, (samples, rounds, threads) = sys.argv[1], map(int, sys.argv[2:5])
    device = torch.device(sys.argv[6] if len(sys.argv) > 6 else "cpu")
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    shared = MODELS[name]()
    load(shared, sys.argv[5])
    shared.to(device)
    x, y = map(torch.from_numpy, random_samples(name, samples))
    x, y = (x.long() if SHAPES[name].tokens else x).to(device), y.long().to(device)
    with torch.no_grad():
        first_loss = loss(shared(x[:400]), y[:400]).item()
    meter = Meter()
    for t in range(2 * rounds):
        if t == rounds:
            wait(device)
            meter.restart()
        run_round(shared, x, y)
    wait(device)
    row = meter.row(samples * rounds, torch=torch.__version__, first_loss=first_loss)
    with torch.no_grad():
        row["loss"] = loss(shared(x[:400]), y[:400]).item()
    print(json.dumps(row))


def wait(device: torch.device) -> None:
    """Wait for the operations that were started on a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
