"""What the tests of files compare of the data that are read."""

import numpy as np

from resolvent.data.federated import SPLITS


def samples_of(data):
    """All samples of a data set, each with its label as the last number, sorted."""
    samples = [np.append(x.ravel(), y) for k in range(len(data)) for s in SPLITS for x, y in
               zip(*data.party(k, s), strict=True)]
    return np.array(sorted(samples, key=tuple))
