"""Host memory: the rounds of a run on the device to the bit, whatever is gathered, written back, killed or damaged."""


import jax
import numpy as np
import pytest

import resolvent as rv
from resolvent.simulate import memory

PARTIES, FEATURES = 37, 5
MODEL = rv.models.logistic(FEATURES, 3)
SOLVER = rv.SGD(0.1, batch_size=4, epochs=2)
WHO = rv.Stragglers(rv.Uniform(cohort=6), share=0.4)


def parties(count=PARTIES, seed=0):
    """Parties of different sizes, whose inputs are pixels."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n = int(rng.integers(4, 23))
        yield rng.integers(0, 256, (n, FEATURES), np.uint8), rng.integers(0, 3, n)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The same parties in memory and on the disk."""
    folder = tmp_path_factory.mktemp("packed") / "data"
    data = rv.write_packed(folder, parties(), classes=["0", "1", "2"], scale=1 / 255, seed=3)
    xs, ys = zip(*parties(), strict=True)
    scaled = [x.astype(np.float32) * np.float32(1 / 255) for x in xs]
    return rv.FederatedData.from_arrays(scaled, ys, classes=["0", "1", "2"], seed=3), data


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of two rounds, so that a run has many."""
    monkeypatch.setattr(memory, "_CHUNK_BYTES", 4500)


def run(algorithm, data, **options):
    settings = {"rounds": 12, "evaluate_every": 5, "participation": WHO, "progress": False} | options
    return rv.simulate(algorithm, MODEL, data, **settings)


def test_what_is_packed_is_what_from_arrays_holds(packed):
    there, on_disk = packed
    assert len(on_disk) == PARTIES
    assert on_disk.parties[4] == "party 4" in on_disk.parties
    assert (on_disk.index("party 7"), "party 07" in on_disk.parties) == (7, False)
    for split in ("train", "validation", "test"):
        np.testing.assert_array_equal(there.sizes(split), on_disk.sizes(split))
        for k in range(PARTIES):
            for a, b in zip(there.party(k, split), on_disk.party(k, split), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


ALGORITHMS = {
    "FedAvg": rv.fedavg(SOLVER),
    "Fed+": rv.fedgeomed_plus(SOLVER),
    "SCAFFOLD": rv.scaffold(SOLVER),
    "the best of its own and the shared model": rv.NeverWorse(rv.fedprox(SOLVER), SOLVER),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_host_memory_changes_no_bit(name, packed, small_chunks):
    there, on_disk = packed
    seen = {"diagnostics": ("model_change", "line", "dissimilarity"), "clock": rv.VirtualClock()}
    seen = seen if name == "Fed+" else {}
    device = run(ALGORITHMS[name], there, memory="device", **seen)
    host = run(ALGORITHMS[name], on_disk, memory="host", **seen)
    assert host.memory.capacity == 2
    assert device.metrics.equals(host.metrics)
    assert device.facts["bytes"] == host.facts["bytes"]
    for a, b in zip(jax.tree.leaves((device.state.server, device.state.parties, device.personal_models)),
                    jax.tree.leaves((host.state.server, host.state.parties[np.arange(PARTIES)],
                                     host.personal_models)), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(*(jax.tree.leaves(r.personal("party 5")) for r in (device, host)), strict=True):
        np.testing.assert_array_equal(a, b)
