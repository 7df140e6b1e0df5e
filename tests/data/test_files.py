"""Data in the formats of the world: read as they are, and refused by name where they are cut off or another thing."""

import gzip
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

import resolvent as rv
from resolvent.data import files
from resolvent.data.federated import SPLITS
from resolvent.data.partitions import IID, ByUser, Shards
from resolvent.data.texts import CHARACTERS

D = rv.datasets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("RESOLVENT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def idx_bytes(array, code=8):
    return bytes([0, 0, code, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder, images, labels, name="mnist/train"):
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))


IMAGES = np.random.default_rng(0).integers(0, 256, (50, 4, 3), np.uint8)
DIGITS = np.arange(50, dtype=np.uint8) % 10


def sample_of(data):
    """All samples of a data set, sorted, with their labels."""
    whole = [np.append(x.ravel(), y) for k in range(len(data)) for s in SPLITS for x, y in
             zip(*data.party(k, s), strict=True)]
    return np.array(sorted(whole, key=tuple))


def test_idx_plain_and_gzipped_is_what_was_written(folder):
    write_mnist(folder, IMAGES, DIGITS)
    data = D.mnist(part="train", partition=IID(3))
    wanted = np.column_stack([IMAGES.reshape(50, -1) / np.float32(255), DIGITS])
    np.testing.assert_allclose(sample_of(data), np.array(sorted(wanted, key=tuple)), rtol=1e-6)
    values = np.array([[1.5, -2.0]], ">f4")
    (folder / "floats").write_bytes(idx_bytes(values, 13))
    read = files.idx(folder / "floats")
    np.testing.assert_array_equal(read, values)
    assert read.dtype == np.dtype("=f4")


def test_standardised_pixels_are_those_of_the_formula(folder):
    write_mnist(folder, IMAGES, DIGITS)
    data = D.mnist(part="train", partition=IID(1), scale="standard", test=0)
    plain = D.mnist(part="train", partition=IID(1), test=0)
    x = IMAGES.astype(float)
    wanted = (plain.x * 255.0 - x.mean(axis=0)) / (x.std(axis=0) + 0.001)
    np.testing.assert_allclose(data.x, wanted, atol=1e-4)
    overall = D.mnist(part="train", partition=IID(1), scale="overall", test=0)
    np.testing.assert_allclose(overall.x, (plain.x * 255.0 - x.mean()) / x.std(), atol=1e-4)


@pytest.mark.parametrize(("change", "message"), [
    (lambda b: b[:-1], r"cut off: its header says 50 x 4 x 3 values, so 616 bytes were expected, and there are 615"),
    (lambda b: b + b"x", r"is too long: .* 616 bytes"),
    (lambda b: b[:7], r"cut off in its header: 7 bytes"),
    (lambda b: b"<html>", r"not an IDX file: it begins with '3c 68 74 6d'"),
    (lambda b: b"", r"not an IDX file"),
    (lambda b: gzip.compress(b)[:-30], r"cut off or damaged"),
    (lambda b: idx_bytes(IMAGES[0]), r"holds uint8 of shape \(4, 3\).*expected bytes \[n, rows, columns\]"),
    (lambda b: idx_bytes(IMAGES[:7]), r"shape \(7, 4, 3\) and its labels have shape \(50,\)"),
])
def test_what_is_no_whole_idx_file_is_named(folder, change, message):
    write_mnist(folder, IMAGES, DIGITS)
    path = folder / "mnist/train-images-idx3-ubyte"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(rv.InputError, match=rf"train-images-idx3-ubyte.*{message}"):
        D.mnist(part="train", partition=IID(3))


def test_a_missing_file_says_where_it_was_looked_for_and_how_to_get_it(folder, monkeypatch):
    with pytest.raises(rv.InputError, match=r"mnist/train-images-idx3-ubyte in .*cache.*resolvent data fetch mnist"):
        D.mnist()
    monkeypatch.delenv("RESOLVENT_DATA")
    with pytest.raises(rv.InputError, match=r"the environment variable RESOLVENT_DATA is not set"):
        D.cifar10()
    files.folders()[0].mkdir(parents=True)
    write_mnist(files.folders()[0], IMAGES, DIGITS)
    assert len(D.mnist(part="train", partition=IID(3))) == 3  # the cache folder serves as well


def test_emnist_is_put_upright_and_keeps_the_labels_asked_for(folder):
    write_mnist(folder, IMAGES, DIGITS, "emnist/emnist-letters-test")
    data = D.emnist(files=("emnist-letters-test",), labels=(3, 7), classes=("c", "g"), partition=IID(2), test=0)
    assert data.classes == ("c", "g")
    kept = np.isin(DIGITS, [3, 7])
    wanted = np.column_stack([IMAGES[kept].transpose(0, 2, 1).reshape(10, -1) / np.float32(255), DIGITS[kept] == 7])
    np.testing.assert_allclose(sample_of(data), np.array(sorted(wanted, key=tuple)), rtol=1e-6)
    with pytest.raises(rv.InputError, match=r"no image of emnist-letters-test has the label 30 \(x\)"):
        D.emnist(files=("emnist-letters-test",), labels=(30,), classes=("x",))


def cifar(folder, kind):
    rng = np.random.default_rng(3)
    planes, labels = rng.integers(0, 256, (20, 3072), np.uint8), np.arange(20) % 10
    place = folder / f"cifar-10-batches-{kind}"
    place.mkdir()
    if kind == "bin":
        records = np.column_stack([labels.astype(np.uint8), planes])
        (place / "data_batch_2.bin").write_bytes(records.tobytes())
    else:
        content = {b"data": planes, b"labels": labels.tolist(), b"batch_label": b"training batch 2 of 5"}
        (place / "data_batch_2").write_bytes(pickle.dumps(content, protocol=2))
    return planes, labels, place


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_cifar_in_both_formats_has_red_green_blue_last(folder, kind):
    planes, labels, _ = cifar(folder, kind)
    data = D.cifar10(batches=(2,), partition=IID(2), test=0)
    images = planes.reshape(20, 3, 32, 32).transpose(0, 2, 3, 1)
    wanted = np.column_stack([images.reshape(20, -1) / np.float32(255), labels])
    assert data.input_shape == (32, 32, 3)
    assert data.classes[9] == "truck"
    np.testing.assert_allclose(sample_of(data), np.array(sorted(wanted, key=tuple)), rtol=1e-6)


class Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('code was run')",)


def test_a_pickle_that_would_run_code_is_refused_unrun(folder):
    path = cifar(folder, "py")[2] / "data_batch_2"
    whole = path.read_bytes()
    for content, message in [
        (pickle.dumps(Evil()), r"data_batch_2 is not a CIFAR-10 batch: it names builtins.exec"),
        (pickle.dumps({b"data": Evil()}), r"it names builtins.exec"),
        (pickle.dumps({b"data": np.zeros((2, 9), np.uint8), b"labels": [0, 1]}), r"expected a mapping with data"),
        (pickle.dumps([1, 2]), r"found list"), (whole[:len(whole) // 2], r"cut off or damaged"),
    ]:
        path.write_bytes(content)
        with pytest.raises(rv.InputError, match=message):
            D.cifar10(batches=(2,))


def test_a_cifar_batch_that_is_not_whole_is_named(folder):
    path = cifar(folder, "bin")[2] / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(rv.InputError, match=r"data_batch_2.bin is not a whole CIFAR-10 batch: 61459 bytes, .* 3073"):
        D.cifar10(batches=(2,))
    path.write_bytes(b"\x0b" + bytes(3072))
    with pytest.raises(rv.InputError, match=r"label 11, expected 0 to 9"):
        D.cifar10(batches=(2,))


def write_leaf(path, samples):
    content = {"users": list(samples), "num_samples": [len(y) for _, y in samples.values()],
               "user_data": {u: {"x": x, "y": y} for u, (x, y) in samples.items()}}
    path.write_bytes(gzip.compress(json.dumps(content).encode()))


def test_leaf_keeps_users_and_the_test_samples_that_it_names(folder):
    write_leaf(folder / "train.json.gz", {"u1": ([[1, 2], [3, 4], [5, 6]], [0.0, 1.0, 0.0]), "u2": ([[7, 8]], [1.0])})
    write_leaf(folder / "test.json.gz", {"u2": ([[9, 9]], [1.0]), "u3": ([[0, 0]], [0.0]), "u1": ([[2, 2]], [1.0])})
    data = D.leaf(train="train.json", held_out="test.json")
    assert data.parties == ("u1", "u2")
    assert (data.task, data.classes) == ("classification", ("0", "1"))
    np.testing.assert_array_equal(data.party("u1", "test")[0], [[2, 2]])
    np.testing.assert_array_equal(data.party("u2", "test")[0], [[9, 9]])
    assert sorted(data.party("u1")[0][:, 0]) == [1, 3, 5]
    assert data.notes == ("users with test samples only, left out: 1",)
    assert sum(D.leaf(train="train.json", test=0.4).sizes("test")) == 1
    write_leaf(folder / "text.json.gz", {"HAMLET": (["To be, ", "o be, o"], ["o", "r"]), "GHOST": (["Adieu, "], ["a"])})
    text = D.leaf(train="text.json", test=0)
    assert text.vocabulary == tuple(CHARACTERS) == text.classes
    assert ["".join(CHARACTERS[i] for i in x) for x in text.party("GHOST")[0]] == ["Adieu, "]


def test_the_authors_synthetic_files_are_read(real_data):
    data = D.leaf(train="fedprox_synthetic/synthetic_1_1_mytest.json")
    assert (len(data), data.input_shape, len(data.x), data.outputs) == (30, (60,), 1084, 10)


@pytest.mark.parametrize(("content", "message"), [
    (b'{"users": ["a"], "num_sam', r"not JSON, or cut off"), (b"[1]", r"not a LEAF file: .* found list"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1]], "y": [0]}}}',
     r"user 'a' should have 2 samples, but there are 1 inputs and 1 labels"),
    (b'{"users": ["a"], "num_samples": [2], "user_data": {"a": {"x": [[1], [1, 2]], "y": [0, 1]}}}',
     r"neither numbers nor text of one length"),
    (b'{"users": ["a"], "num_samples": [0], "user_data": {"a": {"x": [], "y": []}}}', r"no user with a sample"),
])
def test_what_is_no_leaf_file_is_named(folder, content, message):
    (folder / "a.json").write_bytes(content)
    with pytest.raises(rv.InputError, match=message):
        D.leaf(train="a.json")


def test_libsvm_text_is_read_as_scikit_learn_reads_it(folder):
    (folder / "a.svm.gz").write_bytes(gzip.compress(b"-1 1:0.5 3:2\n+1 2:1\n-1 1:1\n"))
    data = D.libsvm(file="a.svm", partition=IID(1), test=0)
    assert data.classes == ("-1", "1")
    np.testing.assert_array_equal(sample_of(data), [[0, 1, 0, 1], [0.5, 0, 2, 0], [1, 0, 0, 0]])
    assert D.libsvm(file="a.svm", partition=IID(1), task="regression", test=0).y.dtype == np.float32
    for content, message in [(b"hello world\n", "not in LIBSVM's format"), (b"", "has no lines"),
                             (gzip.compress(b"-1 1:0.5\n" * 99)[:-20], "cut off or not in")]:
        (folder / "b.svm").write_bytes(content)
        with pytest.raises(rv.InputError, match=rf"b.svm.*{message}"):
            D.libsvm(file="b.svm")


SPEECHES = [("Hamlet", "HAMLET", "To be, or not to be"), ("Hamlet", "GHOST", "Adieu, adieu! Hamlet, remember me."),
            ("Hamlet", "HAMLET", "O all you host of heaven!"), ("Lear", "FOOL", "Nuncle")]


def test_shakespeare_predicts_the_character_that_follows_within_a_role(folder):
    (folder / "shakespeare").mkdir()
    lines = [json.dumps({"play": p, "role": r, "text": t}) for p, r, t in SPEECHES]
    (folder / "shakespeare/plays_by_role.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    data = D.shakespeare(length=10, test=0)
    assert data.parties == ("Hamlet: GHOST", "Hamlet: HAMLET")  # the fool speaks too little
    said = "\n".join(t for _, r, t in SPEECHES if r == "HAMLET")
    wanted = sorted((said[i:i + 10], said[i + 10]) for i in range(len(said) - 10))
    got = sorted(("".join(CHARACTERS[i] for i in x), data.classes[y])
                 for x, y in zip(*data.party("Hamlet: HAMLET"), strict=True))
    assert got == wanted
    assert D.shakespeare(length=10, stride=3, most=4, test=0).sizes().tolist() == [4, 4]
    (folder / "tiny.txt").write_text("First Citizen:\nBefore we proceed any further\n\nAll:\nSpeak, speak.\n")
    assert D.shakespeare(file="tiny.txt", length=5, test=0).parties == ("All", "First Citizen")
    (folder / "cut.jsonl").write_text(lines[0] + "\n" + lines[1][:30])
    with pytest.raises(rv.InputError, match=r"cut.jsonl, line 2 is cut off, or no JSON object with play, role and"):
        D.shakespeare(file="cut.jsonl")
    with pytest.raises(rv.InputError, match=r"no role of tiny.txt speaks more than 80 characters"):
        D.shakespeare(file="tiny.txt")


def test_sentiment_counts_words_and_pads_in_front(folder):
    (folder / "s.csv").write_text(
        'user_id,polarity,text\n7,neg,"I don\'t like it, at all"\n7,pos,Great :)\n8,pos,It is it\n')
    data = D.sentiment(file="s.csv", words=4, partition=ByUser(), test=0)
    assert (data.parties, data.classes) == (("7", "8"), ("neg", "pos"))
    assert data.vocabulary[:4] == ("<pad>", "<unknown>", "it", ":)")  # the most frequent first, then the alphabet
    said = {tuple(data.vocabulary[i] for i in x): data.classes[y] for x, y in zip(data.x, data.y, strict=True)}
    assert said == {("i", "don't", "like", "it"): "neg", ("<pad>", "<pad>", "great", ":)"): "pos",
                    ("<pad>", "it", "is", "it"): "pos"}
    few = D.sentiment(file="s.csv", words=4, vocabulary=1, partition=ByUser(), test=0)
    assert few.vocabulary == ("<pad>", "<unknown>", "it")
    (folder / "s140.csv").write_bytes(
        '"0","1","Mon","NO_QUERY","ann","café is bad"\n"4","2","Mon","NO_QUERY","bob","good"\n'.encode("latin-1"))
    assert D.sentiment(file="s140.csv", partition=ByUser(), test=0).parties == ("ann", "bob")
    for change, message in [({"user": "userid"}, r"no column 'userid': .* did you mean 'user_id'"),
                            ({"classes": ["neg", "poss"]}, r"polarity 'poss': .* did you mean 'pos'"),
                            ({"classes": ["neg"]}, r"nothing to learn")]:
        with pytest.raises(rv.InputError, match=message):
            D.sentiment(file="s.csv", **change)
    (folder / "s.csv").write_text("user_id,polarity,text\n7,neg,fine\n8,pos")
    with pytest.raises(rv.InputError, match=r"s.csv, message 2: the text is missing: it may be cut off there"):
        D.sentiment(file="s.csv")


POSTS = """<?xml version="1.0" encoding="utf-8"?>
<posts>
  <row Id="1" PostTypeId="1" OwnerUserId="5" Tags="&lt;wallet&gt;&lt;api&gt;"
    Body="&lt;p&gt;One two three four &amp;amp; five&lt;/p&gt;" />
  <row Id="2" PostTypeId="2" ParentId="1" OwnerUserId="6" Body="six one two" />
  <row Id="3" PostTypeId="1" OwnerUserId="-1" Tags="&lt;api&gt;" Body="the site itself" />
  <row Id="4" PostTypeId="1" OwnerUserId="6" Tags="|api|" Body="two one two" />
  <row Id="5" PostTypeId="6" OwnerUserId="6" Body="an election" />
</posts>"""


def test_stack_exchange_posts_by_author(folder):
    (folder / "Posts.xml.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf" + POSTS.encode()))
    data = D.stackexchange(file="Posts.xml", words=2, partition=ByUser(), test=0)
    pieces = [(data.parties[k], *(data.vocabulary[i] for i in x), data.classes[y])
              for k in range(len(data)) for x, y in zip(*data.party(k), strict=True)]
    assert sorted(pieces) == [("5", "one", "two", "three"), ("5", "three", "four", "five"),
                              ("6", "six", "one", "two"), ("6", "two", "one", "two")]
    tags = D.stackexchange(file="Posts.xml", target="tag", vocabulary=2, partition=ByUser(), test=0)
    assert tags.classes == ("wallet", "api")  # an answer has its question's first tag
    assert sorted(tags.classes[y] for y in tags.party("6")[1]) == ["api", "wallet"]
    assert tags.features == ("<pad>", "<unknown>", "two", "one")
    np.testing.assert_allclose(tags.party("5")[0], [[0, 0.6, 0.2, 0.2]])
    for content, message in [(POSTS[:300], "cut off or not an XML dump"), ("<posts></posts>", "no question or answer"),
                             ('<users><row Id="1" Age="3" /></users>', "not a Stack Exchange Posts.xml: a row")]:
        (folder / "bad.xml").write_text(content)
        with pytest.raises(rv.InputError, match=message):
            D.stackexchange(file="bad.xml")


def test_the_real_texts_are_what_they_are_said_to_be(real_data):
    data = D.stackexchange(file="stackexchange/cardano_stackexchange_Posts.xml", target="tag")
    assert set(data.parties) <= {r.get("OwnerUserId") for r in files.xml_rows(
        files.find("stackexchange/cardano_stackexchange_Posts.xml"))}
    airlines = D.sentiment(file="sentiment/airline_tweets.csv", user="airline", label="sentiment", partition=ByUser(),
                           test=0)
    assert dict(zip(airlines.parties, airlines.sizes(), strict=True)) == {
        "American": 2759, "Delta": 2222, "Southwest": 2420, "US Airways": 2913, "United": 3822, "Virgin America": 504}
    assert np.bincount(airlines.y).tolist() == [9178, 3099, 2363]
    plays = D.shakespeare(partition=ByUser(least=161 - 80), stride=1, most=81, test=0)
    assert len(plays) == 1054 - _exactly_160(real_data)


def _exactly_160(real_data):
    """Roles with 160 characters exactly have 80 windows, one too few."""
    said = {}
    for line in files.read(files.find("shakespeare/plays_by_role.jsonl")).decode().splitlines():
        speech = json.loads(line)
        said.setdefault((speech["play"], speech["role"]), []).append(speech["text"])
    return sum(len("\n".join(t)) == 160 for t in said.values())


def test_real_cifar_in_the_binary_format(real_data, folder):
    subprocess.run([sys.executable, real_data / "unpack_cifar10.py", folder], check=True, capture_output=True)
    data = D.cifar10(batches=(1,), partition=Shards(10, 10, "sorted"), validation=0.1, test=0.1)
    assert [set(data.sizes(s)) for s in SPLITS] == [{800}, {100}, {100}]  # the operator-splitting paper's, A.3
    test = D.cifar10(part="test", partition=IID(1), test=0)
    assert np.bincount(test.y).tolist() == [1000] * 10
