"""Tables for the tests of tables, and what the tests compare of the data made from them."""

import hashlib

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes, load_wine

from resolvent.data.federated import SPLITS

SITES = np.array(["site 10", "site 2", "Site 1", "site 33"])


def wine():
    """178 rows of 13 numbers, with three classes and four sites."""
    bunch = load_wine()
    frame = pd.DataFrame(bunch.data, columns=bunch.feature_names)
    frame["cultivar"] = bunch.target_names[bunch.target]
    frame["site"] = SITES[np.random.default_rng(0).choice(4, len(frame), p=[0.4, 0.3, 0.2, 0.1])]
    return frame


def diabetes():
    """442 rows of 10 numbers, with a decimal target and five clinics."""
    frame = load_diabetes(as_frame=True, scaled=False).frame
    return frame.assign(clinic=np.arange(len(frame)) % 5)


def people():
    """60 rows of numbers, true/false and text, with five missing values, three in age and two in city."""
    rng = np.random.default_rng(1)
    n = 60
    frame = pd.DataFrame({
        "id": np.arange(n),
        "age": rng.integers(20, 80, n).astype(float),
        "height": rng.normal(1.7, 0.1, n),
        "smokes": rng.random(n) < 0.3,
        "city": rng.choice(["Rome", "Oslo", "Bern"], n),
        "hospital": rng.choice(["b", "a"], n),
        "ill": rng.integers(0, 2, n),
    })
    frame.loc[[3, 17, 40], "age"] = np.nan
    frame.loc[[5, 17], "city"] = None
    return frame


def digest(data):
    """A hash of everything that a computation can read from the data."""
    arrays = [data.x, data.y, *(a for s in SPLITS for a in (data.splits[s].offset, data.splits[s].length))]
    kinds = [(a.dtype.str, a.shape) for a in arrays]
    texts = repr((kinds, data.parties, data.task, data.classes, data.features, data.notes, data.encoding)).encode()
    return hashlib.sha256(texts + b"".join(a.tobytes() for a in arrays)).hexdigest()


def inputs_of(data, split):
    """All parties' inputs of one split."""
    return np.concatenate([data.party(k, split)[0] for k in range(len(data))])


def column(data, name):
    """One input of all samples."""
    return data.x[:, data.features.index(name)]
