"""The golden file is that of the present code, has all presets, and its comparison reports every difference."""

import numpy as np
import pytest

from golden import arrays, messages, trajectories, workers
from resolvent.algorithms import presets


@pytest.mark.nightly
@pytest.mark.devices
def test_the_present_code_computes_the_recorded_arrays():
    report = arrays.compare(arrays.read(arrays.FILE), workers.run(), arrays.read_changes(arrays.CHANGES))
    assert not report.failures, "\n".join(report.lines())


@pytest.mark.when_changed
def test_a_worker_starts(tmp_path):
    workers.start("device", tmp_path, ["no preset"])
    assert arrays.read(tmp_path / "device.npz") == {}


def test_the_file_has_every_preset_in_every_way():
    recorded = {tuple(name.split("/")[:2]) for name in arrays.read(arrays.FILE)}
    ways = [*trajectories.WAYS, "devices", "processes"]
    assert {(name, way) for name in trajectories.algorithms() for way in ways} <= recorded
    assert {("messages", name) for name in messages.ALGORITHMS} <= recorded
    assert {*presets.__all__} <= {*trajectories.algorithms()}


VALUES = {"a/sequential/x": np.array([1.0, 2.0]), "a/lanes/x": np.array([1.0, 2.0 + 1e-15]),
          "a/queue/x": np.array([[3.0]]), "a/host/refused": "not here", "a/sequential/one": np.array(7.0)}


def test_a_file_is_read_as_it_was_written(tmp_path):
    arrays.write(tmp_path / "g.npz", VALUES)
    read = arrays.read(tmp_path / "g.npz")
    assert {*read} == {*VALUES}
    assert read["a/host/refused"] == "not here"
    for name in ("a/sequential/x", "a/queue/x", "a/sequential/one"):
        np.testing.assert_array_equal(read[name], VALUES[name])
    np.testing.assert_array_equal(read["a/lanes/x"], VALUES["a/sequential/x"])  # stored once
    assert arrays.compare(read, VALUES, {}).failures == []


@pytest.mark.parametrize(("change", "message"), [
    ({"a/queue/x": np.array([[3.5]])}, "a/queue/x: largest difference 0.5, where values are up to 3"),
    ({"a/queue/x": np.array([3.0])}, "a/queue/x: shape (1, 1) is now (1,)"),
    ({"a/queue/x": np.array([[np.nan]])}, "a/queue/x: other entries are finite"),
    ({"a/host/refused": "nor there"}, "a/host/refused: 'not here' is now 'nor there'"),
    ({"a/queue/x": "refused"}, "a/queue/x: 'an array (1, 1)' is now 'refused'"),
    ({"b/queue/x": np.zeros(1)}, "b/queue/x: not in the file: record it"),
])
def test_every_difference_is_a_failure_unless_it_is_on_purpose(change, message):
    report = arrays.compare(VALUES, VALUES | change, {})
    assert report.failures == [message]
    listed = arrays.compare(VALUES, VALUES | change, {"*/queue/*": "why", "a/host/*": "why"}, is_complete=False)
    assert (listed.failures, listed.changed) == ([], [f"{message} (why)"])


def test_what_is_missing_and_a_change_without_a_difference_are_failures():
    report = arrays.compare(VALUES, {k: v for k, v in VALUES.items() if k != "a/queue/x"}, {"a/lanes/*": "why"})
    assert report.failures == ["a/queue/x: missing",
                               "changes.yaml: a/lanes/*: nothing of this name differs: remove the entry"]


def test_files_are_compared_in_the_precision_of_the_commands():
    expected, found = {"files/x": np.ones(1)}, {"files/x": np.array([1 + 3e-5])}
    assert arrays.compare(expected, found, {}).failures == []
    assert arrays.compare(expected, {"files/x": np.array([1.001])}, {}).failures
