"""Another split of the same samples: other training and validation rows of each party, the same test rows."""

import numpy as np
import pytest

import resolvent as rv
from resolvent.data.federated import SPLITS
from resolvent.data.partition.splits import resplit


@pytest.fixture(scope="module")
def data():
    return rv.datasets.digits(parties=4, seed=3)


def test_parties_keep_their_samples_and_sizes(data):
    again, rows = resplit(data, 1)
    for k in range(len(data)):
        before, after = (np.sort(np.concatenate([d.party(k, s)[0] for s in SPLITS]), axis=0) for d in (data, again))
        assert (before == after).all()
        assert all(len(again.party(k, s)[0]) == len(data.party(k, s)[0]) for s in SPLITS)
    assert (again.x == data.x[rows]).all()
    assert sorted(rows) == list(range(len(data.x)))


def test_split_depends_on_the_seed_alone(data):
    first, same, other = resplit(data, 1), resplit(data, 1), resplit(data, 2)
    assert (first.rows == same.rows).all()
    assert (first.rows != other.rows).any()


@pytest.mark.parametrize("test", [0.2, [5, 7]])
def test_test_samples_stay(test):
    """What was tuned with one seed has not read the test rows of another."""
    x = [np.arange(20.0)[:, None], np.arange(20.0, 50.0)[:, None]]
    data = rv.FederatedData.from_arrays(x, [np.arange(20) % 2, np.arange(30) % 2], test=test)
    again = resplit(data, 4).data
    for k in range(2):
        assert (again.party(k, "test")[0] == data.party(k, "test")[0]).all()
        assert sorted(again.party(k)[0].ravel()) != sorted(data.party(k)[0].ravel())
