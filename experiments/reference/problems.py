"""The problems of the reference: data, model, local work and participation, and what a reader would call the data."""

from collections.abc import Callable
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import resolvent as rv

MALICIOUS = 5  # in the second layer every fifth party is malicious
Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


class Problem(NamedTuple):
    """A column of the table.

    Attributes:
        name: its name.
        data_set: problems of one data set count once in the ranks.
        kind: what a reader would call the data; the recommendations are by kind.
        title: parties, data and model in a line.
        score: the metric of validation and test samples; ``digits`` of a problem with a known optimum are the decimal
            digits of its optimality gap.
        data: the parties' samples, or a problem with a known optimum.
        model: the model of the data.
        solver: the local work with a learning rate.
        rounds: rounds of a run.
        participation: who takes part in a round.
        head: names of the layers that are personal in methods with personal layers.
        classes: number of classes, where the model has a hidden layer.
        unit: the length of a step that suits its losses; weights and steps of methods are in this unit.
        features: outputs of the layer before the last one; None for a model without hidden layers.
    """

    name: str
    data_set: str
    kind: str
    title: str
    data: Callable[[], Any]
    model: Callable[[rv.FederatedData], rv.Model] | None
    solver: Callable[[float], Any]
    rounds: int = 60
    score: str = "accuracy"
    participation: rv.participation.Participation = rv.participation.Full()
    head: tuple[str, ...] = ("layer 1",)
    features: int | None = 32
    classes: int = 10
    unit: float = 1.0

    @property
    def programs(self) -> str:
        """Problems with the same value have arrays of the same shapes, and share their compiled programs."""
        return "14x14" if self.data_set in ("MNIST", "letters") else self.data_set

    @property
    def is_solved(self) -> bool:
        """Whether the optimum is known, and the model is that of the problem."""
        return self.model is None


def half(cohort: int) -> rv.participation.Participation:
    """A cohort in every round, half of which can do a part of the work only."""
    return rv.participation.Stragglers(rv.participation.Uniform(cohort), share=0.5)


def sgd(epochs: int = 2, batch: int = 10) -> Callable[[float], rv.SGD]:
    """Local epochs of minibatches."""
    return lambda rate: rv.SGD(rate, batch_size=batch, epochs=epochs)


def divided(arrays: Callable[[], Arrays], partition: Any, total: int, shift: Any = None) -> rv.FederatedData:
    """Images by a partition, in multiples of ten at a party and ``total`` in all.

    All divisions of a data set then have the same shapes, and share their compiled programs.
    """
    x, y = arrays()
    rows = [index[:len(index) // 10 * 10] for index in partition(y, 0)]
    while sum(map(len, rows)) > total:
        largest = max(range(len(rows)), key=lambda k: len(rows[k]))
        rows[largest] = rows[largest][:-10]
    if sum(map(len, rows)) < total:
        raise ValueError(f"{partition} leaves {sum(map(len, rows))} rows in multiples of ten, of {total} that are used")
    inputs = [1 - x[index] if shift and k < shift else x[index] for k, index in enumerate(rows)]
    return rv.FederatedData.from_arrays(inputs, [y[index] for index in rows], validation=0.2, test=0.4, seed=0,
                                        classes=[str(c) for c in range(int(y.max()) + 1)])


@cache
def digits() -> Arrays:
    """scikit-learn's 1,797 images of 8x8."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y


def one_party(data: rv.FederatedData) -> Arrays:
    """All samples of data whose only party has no validation or test samples."""
    x, y = data.party(0)
    return np.asarray(x), np.asarray(y)


def smaller(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Images of half the height and width: means of four pixels."""
    n, height, width, *channels = images.shape
    return np.asarray(images.reshape(n, height // 2, 2, width // 2, 2, *channels).mean((2, 4)), np.float32)


@cache
def mnist() -> Arrays:
    """The first 4,000 test images of MNIST, as 14x14 pixels."""
    x, y = one_party(rv.datasets.mnist(part="test", partition=rv.partitions.IID(1), validation=0.0, test=0.0))
    return smaller(x.reshape(-1, 28, 28)[:4000]).reshape(4000, -1), y[:4000]


@cache
def letters() -> Arrays:
    """400 images of each of the letters a to j of EMNIST, as 14x14 pixels."""
    x, y = one_party(rv.datasets.emnist(files=("emnist-letters-test-first10000",), labels=tuple(range(1, 11)),
                                        partition=rv.partitions.IID(1), validation=0.0, test=0.0))
    rows = np.concatenate([np.flatnonzero(y == c)[:400] for c in range(10)])
    return smaller(x.reshape(-1, 28, 28)[rows]).reshape(len(rows), -1), y[rows]


@cache
def cifar() -> Arrays:
    """3,000 images of CIFAR-10, as 16x16 pixels."""
    x, y = one_party(rv.datasets.cifar10(batches=(1,), partition=rv.partitions.IID(1), validation=0.0, test=0.0))
    return smaller(x[:3000]), y[:3000]


def tweets() -> rv.FederatedData:
    """Tweets on six airlines, which are the parties: which of the 200 most frequent words occur."""
    tokens = rv.datasets.sentiment(file="sentiment/airline_tweets.csv", user="airline", label="sentiment",
                                   vocabulary=200, validation=0.0, test=0.0)
    inputs, labels = [], []
    for party in tokens.parties:
        words, y = (np.asarray(part)[:500] for part in tokens.party(party))
        bag = np.zeros((len(words), int(np.max(tokens.x)) + 1), np.float32)
        bag[np.arange(len(words))[:, None], words] = 1
        inputs.append(bag[:, 2:])  # without padding and unknown words
        labels.append(np.array(tokens.classes)[y])
    return rv.FederatedData.from_arrays(inputs, labels, parties=tokens.parties, validation=0.2, test=0.4, seed=0)


def insurance() -> rv.FederatedData:
    """RAND Health Insurance Experiment of statsmodels, first years: any medical expense, by six sites."""
    import pandas as pd

    package = find_spec("statsmodels")
    assert package is not None
    assert package.origin is not None
    table = pd.read_csv(Path(package.origin).parent / "datasets" / "randhie" / "src" / "randhie.csv")
    table = table[table["year"] == 1]
    columns = ["site", "coins", "income", "xage", "female", "child", "fchild", "linc", "num", "educdec", "disea",
               "physlm", "black", "hlthg", "hlthf", "hlthp"]
    frame = table[columns].fillna(table[columns].median()).assign(expense=np.where(table["binexp"] == 1, "yes", "no"))
    frame = frame.groupby("site").head(400)
    return rv.datasets.from_frame(frame, "site", "expense", validation=0.2, test=0.4, seed=0)


def diabetes() -> rv.FederatedData:
    """scikit-learn's patients with diabetes: the progression after a year, in eight groups by age."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    x, y = x / x.std(0), (y - y.mean()) / y.std()
    groups = np.array_split(np.argsort(x[:, 0], kind="stable"), 8)
    return rv.FederatedData.from_arrays([x[g].astype(np.float32) for g in groups], [y[g] for g in groups],
                                        task="regression", validation=0.2, test=0.4, seed=0)


def speakers() -> rv.FederatedData:
    """The next character after 20 characters of the 20 longest roles in Shakespeare's plays."""
    return rv.datasets.shakespeare(length=20, stride=7, max_samples=400, validation=0.2, test=0.4,
                                   partition=rv.partitions.ByUser(parties=20, min_samples=400))


def convex() -> Any:
    """A regularised logistic regression of ten parties whose optima differ; the common optimum is known."""
    return rv.problems.logistic_regression(parties=10, samples=100, features=20, heterogeneity=1.0)


def mlp(data: rv.FederatedData) -> rv.Model:
    """A network with one hidden layer of 32 units."""
    return rv.models.mlp(int(np.prod(data.input_shape)), len(data.classes), width=32)


def logistic(data: rv.FederatedData) -> rv.Model:
    """A linear model."""
    return rv.models.logistic(int(np.prod(data.input_shape)), len(data.classes))


def _by_class(arrays: Callable[[], Arrays], concentration: float, total: int) -> rv.FederatedData:
    return divided(arrays, rv.partitions.Dirichlet(20, concentration, min_samples=20), total)


def _skewed(name: str, arrays: Callable[[], Arrays], total: int, shown: str, **settings: Any) -> list[Problem]:
    """Images of a data set by a Dirichlet distribution of two concentrations."""
    return [Problem(f"{name}, {concentration}", name, "labels differ",
                    f"{shown}; Dirichlet distribution of concentration {concentration}",
                    partial(_by_class, arrays, concentration, total),
                    mlp, sgd(), **settings) for concentration in (0.1, 0.5)]


DIGITS = "20 parties, 1,600 images of 8x8 digits, 32 hidden units"
PROBLEMS = [
    Problem("digits, alike", "digits", "parties are alike", f"{DIGITS}; every party has all classes",
            lambda: divided(digits, rv.partitions.IID(20), 1600), mlp, sgd()),
    *_skewed("digits", digits, 1600, DIGITS),
    Problem("diabetes", "diabetes", "a table with sites", "8 age groups, 442 patients, linear regression", diabetes,
            lambda data: rv.models.linear(data.input_shape[0]), sgd(), score="squared_error", head=("bias",),
            features=None),
    Problem("insurance", "insurance", "a table with sites", "6 sites, 2,400 insured persons, logistic regression",
            insurance, logistic, sgd(1, 20), head=("bias",), features=None),
    Problem("tweets", "tweets", "a table with sites", "6 airlines, 3,000 tweets as bags of 200 words, 32 hidden units",
            tweets, mlp, sgd(1, 20), classes=3),
    Problem("convex", "convex", "a known optimum", "10 parties, logistic regression with 20 features, gradient descent",
            convex, None, lambda rate: rv.solvers.GD(0.04 * rate, steps=10), score="digits", head=("bias",),
            features=None, unit=0.04),
    Problem("Synthetic(1, 1)", "Synthetic(1, 1)", "every party has a model of its own",
            "30 parties of FedProx's generator with a mean of each class, logistic regression",
            lambda: rv.datasets.fedprox_synthetic(mean_per_class=True, validation=0.2, test=0.4), logistic,
            sgd(1), participation=half(10), head=("bias",), features=None),
    *_skewed("MNIST", mnist, 3500, "20 parties, 3,500 images of MNIST as 14x14, 32 hidden units",
             participation=half(10)),
    Problem("letters", "letters", "a few outliers",
            "20 parties, 3,500 letters a to j of EMNIST, two parties with inverted images, 32 hidden units",
            lambda: divided(letters, rv.partitions.IID(20), 3500, shift=2), mlp, sgd(), participation=half(10)),
    Problem("Shakespeare", "Shakespeare", "text by speaker", "20 roles, 20 characters, an LSTM of 32 units", speakers,
            lambda data: rv.models.char_lstm(len(data.classes), data.vocabulary, width=32, depth=1), sgd(1, 20),
            rounds=30, participation=half(10), head=("output",), features=None),
    Problem("CIFAR-10", "CIFAR-10", "labels differ",
            "10 parties, 2,900 images as 16x16, two convolutions; Dirichlet distribution of concentration 0.5",
            lambda: divided(cifar, rv.partitions.Dirichlet(10, 0.5, min_samples=20), 2900),
            lambda data: rv.models.mnist_cnn(data.input_shape, 10), sgd(1, 20), rounds=30, participation=half(5),
            features=20),
]
