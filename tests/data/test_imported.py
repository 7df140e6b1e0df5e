"""Data sets of other libraries, memory-mapped arrays without copies, and partitions of fixed sizes and classes."""

import tracemalloc

import numpy as np
import pytest

import resolvent as rv

LABELS = np.repeat(np.arange(5), 40)


class Columns:
    """What the library reads of a data set of Hugging Face."""

    def __init__(self, names=None, **columns):
        self.columns, self.column_names = columns, [*columns]
        self.features = {name: type("Feature", (), {"names": names} if name == "label" else {}) for name in columns}

    def __getitem__(self, name):
        return self.columns[name]


def test_a_table_of_columns_with_a_party_each():
    table = Columns(["no", "yes"], age=[1.0, 2.0, 3.0, 4.0], dose=[5, 6, 7, 8], label=[0, 1, 1, 0],
                    site=["b", "a", "a", "b"])
    data = rv.datasets.from_dataset(table, inputs=["age", "dose"], party="site", validation=0, test=0)
    assert (data.parties, data.classes) == (("a", "b"), ("no", "yes"))
    x, y = data.party("b")
    assert sorted(zip(x.tolist(), y.tolist(), strict=True)) == [([1.0, 5.0], 0), ([4.0, 8.0], 0)]


def test_the_test_part_of_a_dictionary_stays_the_test_samples():
    part = {name: Columns(["no", "yes"], x=[k, k + 1.0, k + 2, k + 3], label=[0, 1, 1, 0], site=[*"baab"])
            for k, name in enumerate(("train", "test"))}
    dataset = type("Parts", (dict,), {"column_names": {name: columns.column_names for name, columns in part.items()}})
    data = rv.datasets.from_dataset(dataset(part), party="site", inputs="x", validation=0)
    assert sorted(np.concatenate([data.party(k, "test")[0] for k in "ab"]).tolist()) == [1, 2, 3, 4]
    assert data.sizes("train").tolist() == [2, 2]


def test_images_of_bytes_become_shares_of_255():
    pictures = [np.full((2, 2), 51 * i, np.uint8) for i in range(5)]
    data = rv.datasets.from_dataset([(picture, i % 2) for i, picture in enumerate(pictures)],
                                    rv.partitions.IID(parties=1), validation=0, test=0)
    np.testing.assert_allclose(np.sort(data.x[:, 0, 0]), np.arange(5) / 5)


@pytest.mark.parametrize(("dataset", "settings", "message"), [
    (Columns(x=[1.0], label=[0]), {}, "needs to know which party"),
    (Columns(x=[1.0], lable=[0]), {"inputs": "x", "party": "x"}, "no column 'label'; there are x, lable; did you mean"),
    (Columns(x=[1.0], y=[2.0], label=[0]), {"party": "label"}, "set inputs to the column"),
    (Columns(["no", "yes"], x=[1.0, 2.0, 3.0], site=["a", "a", "b"], label=[0, -1, -1]), {"party": "site"},
     "2 rows with the label -1"),
    (Columns(x=["text", "more"], label=[0, 1]), {"party": "label"}, "'x' are of type .*encode them first"),
    ([(np.zeros(2), 0), (np.zeros(3), 1)], {"partition": rv.partitions.IID(1)}, r"differ in shape: \[\(2,\), \(3,\)\]"),
    ([1, 2], {"partition": rv.partitions.IID(1)}, "must have a length and return a pair"),
    ([(0.0, 1)], {"party": "site"}, "only a data set of Hugging Face has"),
])
def test_data_sets_that_cannot_be_read_are_refused(dataset, settings, message):
    with pytest.raises(rv.InputError, match=message):
        rv.datasets.from_dataset(dataset, **settings)


@pytest.mark.parametrize("names", [[None, "a", "b", "b"], ["a", " ", "b", "b"], [1.0, np.nan, 1.0, 2.0]])
def test_a_party_without_a_name_and_labels_without_a_value_are_refused(names):
    """Also where a partition is called directly; lists work as arrays do."""
    with pytest.raises(rv.InputError, match=r"'site': the names of the parties: sample [01] has none: fill it in"):
        rv.datasets.from_dataset(Columns(x=[1.0] * 4, label=[0, 1, 1, 0], site=names), party="site")
    values, P = np.array(names, object), rv.partitions
    with pytest.raises(rv.InputError, match=r"the users: sample [01] has none"):
        P.ByUser()(np.zeros(4), seed=0, users=values)
    for rule in (P.Dirichlet(2), P.PowerLaw(2, classes=1, min_samples=1), P.Shards(2, 1), P.FixedClasses(2, 1)):
        with pytest.raises(rv.InputError, match=r"the labels: sample [01] has none"):
            rule(values, seed=0)
        with pytest.raises(rv.InputError, match=r"the labels have the shape \[4, 2\]"):
            rule(np.zeros((4, 2)), seed=0)
        of_list, of_array = rule([0, 1] * 6, seed=0), rule(np.array([0, 1] * 6), seed=0)
        assert [rows.tolist() for rows in of_list] == [rows.tolist() for rows in of_array]


def test_a_model_without_parameters_predicts():
    data = rv.FederatedData.from_arrays([np.eye(4)] * 2, [[0, 1, 0, 1]] * 2)
    model = rv.models.from_functions(lambda key: {}, lambda params, x: x[:, :2])
    fitted = rv.simulate(rv.fedavg(rv.SGD(0.1)), model, data, rounds=1, progress=False).fitted()
    assert fitted.predict(np.eye(4)[:2]).tolist() == ["0", "1"]


def test_a_real_data_set_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"x": datasets.Sequence(datasets.Value("float32"), 3),
                                  "label": datasets.ClassLabel(names=["cat", "dog"]), "site": datasets.Value("string")})
    rows = {"x": np.arange(18.0).reshape(6, 3).tolist(), "label": [0, 1, 0, 1, 1, 1], "site": [*"ababab"]}
    dataset = datasets.Dataset.from_dict(rows, features=features)
    data = rv.datasets.from_dataset(dataset, party="site", validation=0, test=0)
    assert (data.parties, data.classes, data.input_shape) == (("a", "b"), ("cat", "dog"), (3,))
    assert sorted(data.party("a")[0][:, 0]) == [0, 6, 12]
    parts = datasets.DatasetDict(train=dataset, validation=dataset.select([1, 2]), test=dataset.select([4, 5]))
    official = rv.datasets.from_dataset(parts, party="site")
    assert official.fixed == ("validation", "test")
    assert [official.party("a", split)[0][:, 0].tolist() for split in ("validation", "test")] == [[6], [12]]
    assert sorted(official.party("a")[0][:, 0]) == [0, 6, 12]
    with pytest.raises(rv.InputError, match=r"has the parts train: give one of them, such as dataset\['train'\]"):
        rv.datasets.from_dataset(datasets.DatasetDict(train=dataset), party="site")


def test_a_real_data_set_of_pytorch():
    torch = pytest.importorskip("torch")
    dataset = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 2, 0, 1, 2]))
    data = rv.datasets.from_dataset(dataset, rv.partitions.IID(parties=2), validation=0, test=0)
    assert (len(data), data.classes) == (2, ("0", "1", "2"))
    assert sorted(data.x[:, 0]) == [0, 2, 4, 6, 8, 10]


@pytest.mark.when_changed
def test_a_memory_mapped_array_is_neither_copied_nor_read(tmp_path):
    """Making the data and a run in host memory take less than a tenth of the file of 512 MB."""
    parties, rows, features = 200, 5000, 128
    x = np.memmap(tmp_path / "x", np.float32, "w+", shape=(parties * rows, features))  # a sparse file
    y = np.tile(np.array([0, 1], np.int8), parties * rows // 2)

    def run():
        data = rv.datasets.from_consecutive(x, y, [rows] * parties)
        rv.simulate(rv.fedavg(rv.SGD(0.1, steps=1)), rv.models.logistic(features, 2), data, rounds=1, memory="host",
                    participation=rv.participation.Uniform(2), evaluate_parties=2, progress=False)
        return data

    assert np.shares_memory(run().x, x)  # compiles, so that the compiler's memory is not measured
    tracemalloc.start()
    try:
        run()
        assert tracemalloc.get_traced_memory()[1] < x.nbytes / 10
    finally:
        tracemalloc.stop()


def test_splits_of_consecutive_rows():
    data = rv.datasets.from_consecutive(np.arange(20.0).reshape(10, 2), [0, 1] * 5, [5, 5], validation=0.2, test=0.4)
    assert [data.party(1, split)[0][:, 0].tolist() for split in data.splits] == [[10, 12], [14], [16, 18]]
    with pytest.raises(rv.InputError, match="one positive number per party with the sum 10"):
        rv.datasets.from_consecutive(np.zeros((10, 2)), [0, 1] * 5, [5, 4])


def test_sizes_that_are_fixed_or_grow():
    rows = rv.partitions.FixedSizes((10, 30))(LABELS, 0)
    assert [*map(len, rows)] == [10, 30]
    assert len(np.unique(np.concatenate(rows))) == 40
    for growth, power in (("linear", 1), ("square", 2)):
        rows = rv.partitions.GrowingSizes(4, growth)(LABELS, 0)
        expected = np.arange(1, 5.0) ** power
        np.testing.assert_allclose([*map(len, rows)], 200 * expected / expected.sum(), atol=2)
        assert sorted(np.concatenate(rows)) == [*range(200)]
    assert min(map(len, rv.partitions.GrowingSizes(8, "exponential", min_samples=3)(LABELS, 0))) >= 3


def test_every_party_has_the_same_number_of_classes():
    rows = rv.partitions.FixedClasses(parties=10, classes=2)(LABELS, 0)
    assert [len(np.unique(LABELS[r])) for r in rows] == [2] * 10
    assert sorted(np.concatenate(rows)) == [*range(200)]
    assert {len(r) for r in rows} == {20}
    with pytest.raises(rv.InputError, match="the data have 5 classes: ask for fewer"):
        rv.partitions.FixedClasses(classes=6)(LABELS, 0)
    with pytest.raises(rv.InputError, match="has 40 samples for 41 parties"):
        rv.partitions.FixedClasses(parties=41, classes=5)(LABELS, 0)
