"""Folders of runs: two runs in one folder, and methods whose names are one file name."""

import threading

import numpy as np
import pytest

import resolvent as rv

DATA = rv.FederatedData.from_arrays([np.eye(3)[[0, 1, 2] * 4], np.ones((10, 3))], [[0, 1, 0] * 4, [0, 1] * 5])
MODEL, ALGORITHM = rv.models.logistic(3, 2), rv.fedavg(rv.SGD(0.1, steps=1))


def simulate(**options):
    return rv.simulate(ALGORITHM, MODEL, DATA, rounds=2, evaluate_every=1, progress=False, **options)


@pytest.mark.when_changed
def test_a_second_run_in_the_folder_of_checkpoints_is_refused(tmp_path):
    refused = []

    def second(event):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()

    def attempt():
        with pytest.raises(rv.InputError, match=r"checkpoints is being written by process .* give checkpoint= another"):
            simulate(checkpoint=tmp_path / "checkpoints")
        refused.append(True)

    result = simulate(checkpoint=tmp_path / "checkpoints", on_evaluation=second)
    assert refused == [True, True]
    assert simulate(checkpoint=tmp_path / "checkpoints", resume=True).digest == result.digest
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".lock")]


@pytest.mark.when_changed
def test_names_that_would_be_one_file_have_their_own_folders(tmp_path):
    names = ["a/b", "a_b", "a?b", "n" * 300 + "1", "n" * 300 + "2"]
    for name in names:
        simulate(name=name, on_evaluation=rv.callbacks.KeepBest(str(tmp_path), split="train"))
    assert len([*tmp_path.iterdir()]) == len(names)
    assert {rv.load(folder).name for folder in tmp_path.iterdir()} == set(names)


@pytest.mark.when_changed
@pytest.mark.parametrize("length", [300, 5000])
def test_long_names_of_parties_columns_and_methods_are_saved_and_read(length, tmp_path):
    long = "n" * length
    data = rv.FederatedData.from_arrays([DATA.party(0)[0], DATA.party(1)[0]], [DATA.party(0)[1], DATA.party(1)[1]],
                                        parties=[long, f"{long}2"], features=["a", long, "c"], validation=0, test=0)
    result = rv.simulate(ALGORITHM, MODEL, data, rounds=1, progress=False, name=long)
    result.save(tmp_path / "saved")
    assert rv.load(tmp_path / "saved", site=f"{long}2").method == long
    for use in (lambda path: result.save(path), rv.load, rv.open_packed, lambda path: rv.write_packed(path, []),
                lambda path: simulate(checkpoint=path), lambda path: simulate(checkpoint=path, memory="host")):
        with pytest.raises(rv.InputError, match=r"^the name 'n*'?\.\.\. \(\d+ characters in all\) of a file or folder"):
            use(tmp_path / long)


def test_the_current_folder_and_the_root_hold_no_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in (".", "/", ".."):
        with pytest.raises(rv.InputError, match="there is no finished run and no saved result"):
            rv.load(folder)
    with pytest.raises(rv.InputError, match="root of the file system"):
        simulate(checkpoint="/")
