"""FedAvg as a plain PyTorch loop on one thread, for a model of this file: python torch_loop.py MODEL SAMPLES."""

import copy
import json
import resource
import statistics
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

_PARTIES, _ROUNDS, _BATCH = 10, 4, 20


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
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(1000, 64), nn.Linear(64, 10)
        self.positions = nn.Parameter(0.02 * torch.randn(64, 64))
        self.blocks = nn.Sequential(TransformerBlock(), TransformerBlock())

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.blocks(self.embedding(tokens) + self.positions).mean(1))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(20000, 64), nn.Linear(64, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.embedding(tokens).mean(1))


# As in equinox_models: model, shape of an input, number of tokens, number of classes.
MODELS = {
    "mlp": (lambda: nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10)), (784,), 0, 10),
    "logistic": (lambda: nn.Linear(5000, 2), (5000,), 0, 2),
    "cnn": (CNN, (1, 28, 28), 0, 10),
    "resnet": (ResNet, (3, 32, 32), 0, 10),
    "series": (Series, (9, 128), 0, 6),
    "gru": (lambda: Recurrent(nn.GRU), (80,), 80, 80),
    "lstm": (lambda: Recurrent(nn.LSTM), (80,), 80, 80),
    "transformer": (Transformer, (64,), 1000, 10),
    "bag": (Bag, (64,), 20000, 10),
}


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One epoch of minibatches without replacement."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for rows in torch.randperm(len(x)).split(_BATCH):
        optimizer.zero_grad()
        functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def main() -> None:
    """Run and print."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, samples = sys.argv[1], int(sys.argv[2])
    make, shape, tokens, classes = MODELS[name]
    shared = make()
    x = torch.randint(tokens, (samples, *shape)) if tokens else torch.randn(samples, *shape)
    y = torch.randint(classes, (samples,))
    seconds = []
    for _ in range(_ROUNDS):
        start, models = time.process_time(), []
        for part_x, part_y in zip(x.chunk(_PARTIES), y.chunk(_PARTIES), strict=True):
            models.append(copy.deepcopy(shared))
            train(models[-1], part_x, part_y)
        with torch.no_grad():
            for parameter, *of_parties in zip(shared.parameters(), *(m.parameters() for m in models), strict=True):
                parameter.copy_(sum(of_parties) / _PARTIES)
        seconds.append(time.process_time() - start)
    with torch.no_grad():
        loss = functional.cross_entropy(shared(x[:400]), y[:400]).item()
    print(json.dumps({"us": 1e6 * statistics.median(seconds[1:]) / samples, "compile_seconds": 0.0, "loss": loss,
                      "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main()
