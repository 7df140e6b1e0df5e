"""Secure sums between sites and a server, without an engine: models, what sites require, and what a check says."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import nightly
from federation.harness import EXPERIMENT, LIMITS, SITES, Consortium
from federation.secure_parts import SECURE
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.secure.visibility import visibility
from resolvent.federation.site.check import check_site
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame

pytest.importorskip("cryptography")
pytest.importorskip("Crypto")

ALL_SITES = SECURE.replace("threshold: 0.5", "threshold: 1")
PRIVATE = ALL_SITES.replace("FedAvg: fedavg", """FedAvg: {name: PrivateParties, noise: parties, cohort: 2, clip: 0.5,
    noise_multiplier: 0.5, inner: {name: fedavg_plus, sigma: 0.5}}""") + """
participation: {name: Full, weighting: uniform}
"""


@pytest.mark.when_changed
@nightly.parametrize("text", [SECURE, PRIVATE], ids=["FedAvg", "private Fed+"])
def test_models_are_those_of_the_simulation(text, tmp_path):
    """The shared model to the bit; a personal model is in the folder of its site."""
    consortium = Consortium(tmp_path, text=text, policy=REHEARSAL)
    assert consortium.serve() == {"status": "complete"}
    encoding = read_encoding(tmp_path / "aachen" / "mine-1" / "encoding.json")
    data = from_frame(consortium.frame, "site", "ill", encoding=encoding, test=0.3)
    participation = consortium.experiment.participation()
    result = simulate(consortium.experiment.algorithm("FedAvg"), consortium.experiment.model(encoding), data, rounds=3,
                      participation=participation, progress=False)
    shared = ModelFolder(tmp_path / "out" / "models" / "FedAvg").parameters(None)
    assert all(np.asarray(shared[name]).tobytes() == np.asarray(leaf).tobytes()
               for name, leaf in result.server_model.items())
    assert jax.tree.leaves(result.server_model)
    for k, site in enumerate(SITES):
        personal = ModelFolder(tmp_path / site / "mine-1" / "models" / "FedAvg").parameters(site)
        for name, leaf in result.personal_model(k).items():
            np.testing.assert_allclose(personal[name], leaf, atol=1e-6)
            assert (text == PRIVATE) == (np.abs(personal[name] - shared[name]).max() > 1e-3)


@pytest.mark.when_changed
def test_a_site_requires_secure_sums(tmp_path):
    files = {"berlin": {"limits": replace(LIMITS, secure_sums=True)}}
    (tmp_path / "plain").mkdir()
    (tmp_path / "secure").mkdir()
    outcome = Consortium(tmp_path / "plain", files).serve()
    assert outcome["status"] == "refused"
    assert "berlin: refused (limits): the site takes part in secure sums only" in outcome["message"]
    assert Consortium(tmp_path / "secure", files, text=SECURE).serve() == {"status": "complete"}


def test_a_method_that_needs_single_replies_is_refused_at_the_file():
    text = SECURE.replace("FedAvg: fedavg", "FedAvg: fedavg, median: coordinate_median")
    with pytest.raises(InputError, match=r"experiment.yaml:5: .*median: .*CentreFromSums around a robust method"):
        experiment_from_text(text, "mine")
    with pytest.raises(InputError, match="a secure sum has at least 2 sites"):
        experiment_from_text(SECURE.replace("min_sites: 2", "min_sites: 1"), "mine")
    with pytest.raises(InputError, match=r"privacy\.delta: a federation does not measure epsilon"):
        experiment_from_text(SECURE.replace("secure_sums: true", "secure_sums: true, delta: 1e-5"), "mine")
    ExperimentFile.parse(text.replace("ill,", "ill, party: site, table: t.csv,"), "simulation.yaml", "simulation")


def test_a_check_says_who_learns_what(tmp_path):
    consortium = Consortium(tmp_path, text=SECURE)
    (tmp_path / "plan.yaml").write_text(SECURE)
    lines = "\n".join(check_site(consortium.files["aachen"], "aachen", tmp_path / "plan.yaml"))
    assert "alone: the site trains alone, and sends no reply" in lines
    assert "FedAvg: the server sees the sum of the replies of at least 2 sites" in lines
    secure = EXPERIMENT + "privacy: {secure_sums: true}\n"
    for text, line in ((secure, "of more than 66% of those asked"),
                       (secure, "fewer than 33% of the asked sites help it"),
                       (SECURE, "of more than 50% of those asked"), (SECURE, "none of the asked sites helps it"),
                       (ALL_SITES, "not all other asked sites help it"),
                       (ALL_SITES, "of all of those asked; no reply"),
                       (PRIVATE, "the epsilon of this site as a whole after 3 rounds, at delta 1e-05, is "),
                       (EXPERIMENT, "FedAvg: the server sees each reply of this site")):
        experiment = experiment_from_text(text, "mine")
        methods = {label: experiment.algorithm(label) for label in experiment.labels}
        assert line in "\n".join(visibility(methods, experiment.privacy, experiment.rounds_of))
