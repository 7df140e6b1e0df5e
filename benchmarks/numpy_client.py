"""FedAvg's part of a party on the digits in NumPy: what the engines' own FedAvg runs in the benchmarks of the network.

Model, learning rate, batch size and epochs are those of the experiment ``digits``. It needs nothing of this library, so
that Flower can send it to a node.
"""

import numpy as np
import pandas as pd

FEATURES, CLASSES = 64, 10
LEARNING_RATE, BATCH_SIZE, EPOCHS = 0.05, 20, 2


def first_model():
    """Weights and biases of softmax regression."""
    return [np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)]


def read_rows(table):
    """Inputs and classes of the first half of a table; the other half are the test rows, as in the experiment."""
    frame = pd.read_parquet(table)
    frame = frame[:len(frame) // 2]
    return frame.drop(columns="label").to_numpy(np.float32), frame["label"].to_numpy().astype(int)


def train(model, x, y, random):
    """The model after local epochs of SGD."""
    weight, bias = (np.array(array) for array in model)
    for _ in range(EPOCHS):
        order = random.permutation(len(x))
        for start in range(0, len(x), BATCH_SIZE):
            rows = order[start:start + BATCH_SIZE]
            logits = x[rows] @ weight + bias
            share = np.exp(logits - logits.max(axis=1, keepdims=True))
            share /= share.sum(axis=1, keepdims=True)
            share[np.arange(len(rows)), y[rows]] -= 1
            weight -= LEARNING_RATE / len(rows) * (x[rows].T @ share)
            bias -= LEARNING_RATE * share.mean(axis=0)
    return [weight, bias]
