"""Folds: every row is tested once, in equal shapes, and the encoding is fitted to the training rows of the fold."""

import numpy as np
import pandas as pd
import pytest

import resolvent as rv
from resolvent.data.partition.folds import check_folds, default_folds, fold_numbers, split_fold

SIZES = [23, 12, 3, 1]


def arrays(task="classification"):
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(n, 2)) for n in SIZES]
    ys = [(x[:, 0] > 0.5).astype(int) if task == "classification" else x[:, 0] for x in xs]
    return rv.FederatedData.from_arrays(xs, ys, weights=[np.arange(1.0, n + 1) for n in SIZES])


def rows_of(fold, party, split):
    first, n = (int(part[party]) for part in (fold.data.splits[split].offset, fold.data.splits[split].length))
    return np.arange(first, first + n)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("folds", [2, 5, 12])
def test_every_row_is_tested_once_in_equal_shapes(task, folds):
    data = arrays(task)
    splits = [split_fold(data, fold, folds, seed=3) for fold in range(folds)]
    for split in ("train", "validation", "test"):
        assert len({tuple(fold.data.sizes(split)) for fold in splits}) == 1
    assert splits[0].data.sizes("test").tolist() == [-(-n // folds) if n > 1 else 0 for n in SIZES]
    for party, start in enumerate(np.cumsum([0, *SIZES[:-1]])):
        tested = np.concatenate([fold.rows[r][~fold.is_repeated[r]] for fold in splits
                                 for r in [rows_of(fold, party, "test")]])
        assert sorted(tested) == (list(range(start, start + SIZES[party])) if SIZES[party] > 1 else [])
        for fold in splits:
            parts = [fold.rows[rows_of(fold, party, split)] for split in fold.data.splits]
            assert sorted(np.concatenate(parts)) == list(range(start, start + SIZES[party]))
            assert len(parts[0])
            others = np.concatenate([rows_of(fold, party, split) for split in ("train", "validation")])
            assert not fold.is_repeated[others].any()
    for fold in splits:
        np.testing.assert_array_equal(fold.data.x, data.x[fold.rows])
        np.testing.assert_array_equal(fold.data.y, data.y[fold.rows])
        ratio = fold.data.weights / data.weights[fold.rows]  # with the mean 1 over other training rows
        np.testing.assert_allclose(ratio, ratio[0], rtol=1e-5)


def test_folds_follow_from_the_seed_and_do_not_depend_on_the_split():
    data = arrays()
    same, other = split_fold(data, 1, 3, seed=0), split_fold(data, 1, 3, seed=1)
    np.testing.assert_array_equal(same.rows, split_fold(data, 1, 3, seed=0).rows)
    assert sorted(same.rows[rows_of(same, 0, "test")]) != sorted(other.rows[rows_of(other, 0, "test")])


def test_classes_are_divided_equally():
    labels = np.repeat([0, 1, 2], [41, 7, 4])
    numbers = fold_numbers(labels, len(labels), 5, np.random.default_rng(0))
    for c in range(3):
        counts = np.bincount(numbers[labels == c], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert sorted(np.bincount(numbers)) == [10, 10, 10, 11, 11]


def test_a_table_is_encoded_again_in_each_fold():
    """The mean, the deviation and the imputed median are those of the fold's training rows, from the table itself."""
    rng = np.random.default_rng(0)
    age = np.where(rng.random(50) < 0.2, np.nan, rng.gamma(2, 20, 50))
    frame = pd.DataFrame({"site": np.repeat(["a", "b"], [30, 20]), "age": age, "colour": rng.choice(["r", "g"], 50),
                          "ill": np.arange(50) % 2})
    data = rv.datasets.from_frame(frame, "site", "ill", missing="impute")
    order = data.unencoded.order
    means = set()
    for fold in range(4):
        split = split_fold(data, fold, 4, seed=0)
        again = split_fold(split.data, fold, 4, seed=0)  # the columns follow the rows
        rows = order[split.rows]
        train = frame["age"].to_numpy()[rows[split.data.is_train]]
        median = np.nanmedian(train)
        filled = np.where(np.isnan(train), median, train)
        expected = (np.where(np.isnan(age), median, age)[rows] - filled.mean()) / filled.std()
        np.testing.assert_allclose(split.data.x[:, 0], expected, rtol=1e-5)
        number = split.data.encoding.numbers[0]
        assert number.mean == pytest.approx(filled.mean())
        np.testing.assert_array_equal(again.data.unencoded.order, rows[again.rows])
        means.add(number.mean)
    assert len(means) == 4


@pytest.mark.parametrize(("data", "folds", "message"), [
    (lambda: rv.datasets.from_consecutive(np.zeros((10, 2)), [0, 1] * 5, [5, 5]), 2, "test rows of data are fixed"),
    (lambda: rv.FederatedData.from_arrays([np.zeros((9, 2))], [[0, 1, 0] * 3], test=[3]), 2, "use folds: 1"),
    (arrays, 24, "the largest party has 23 rows"),
    (lambda: rv.FederatedData.from_arrays([np.zeros((9, 2))], [[0, 1, 0] * 3], test=0), 2, "no party has test rows"),
    (lambda: rv.problems.least_squares(parties=2), 2, "only samples can be divided"),
])
def test_data_without_folds_are_refused(data, folds, message):
    with pytest.raises(rv.InputError, match=f"folds: {folds}.*{message}"):
        check_folds(data(), folds)


def test_small_tables_have_five_folds_by_default():
    def table(rows, **options):
        frame = pd.DataFrame({"site": np.arange(rows) % 2, "x": np.arange(rows) / rows, "y": np.arange(rows) % 3 / 2})
        return rv.datasets.from_frame(frame, "site", "y", **options)

    small = table(60)
    assert [default_folds(data) for data in (small, table(19_999), table(20_000))] == [5, 5, 1]
    assert default_folds(table(8)) == 1  # no site has five rows
    assert default_folds(table(60, test=0)) == 1
    arrays = rv.FederatedData.from_arrays([np.zeros((60, 2))], [np.arange(60.0)])
    again = rv.datasets.from_frame(pd.DataFrame({"site": [0, 1] * 20, "x": 1.0, "y": range(40)}), "site", "y",
                                   encoding=small.encoding)
    assert [default_folds(data) for data in (arrays, again, None)] == [1, 1, 1]
