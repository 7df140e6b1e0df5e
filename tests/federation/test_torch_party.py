"""A federation whose model is a PyTorch module follows the simulation. Skipped where PyTorch is not installed."""

import pytest

pytest.importorskip("torch")

from federation.harness import lead_of, signed
from federation.torch_sites import SITES, check_models, make_folder
from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.files import read_site
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.site import Site


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("torch"))


def serve(folder, experiment, job):
    job = signed(job)
    sites = {site: Site(site, folder / site / "runs", read_site(folder / site / "site.yaml"), verify=lead_of,
                        identity=local_identities(SITES)[site],
                        policy=REHEARSAL)  # otherwise each site divides its rows by a secret of its own
             for site in SITES}
    try:
        return serve_federation(job, experiment, InProcess({name: site.handle for name, site in sites.items()}),
                                folder / "server", folder / "out", Watch(lambda event: None))
    finally:
        for site in sites.values():
            site.close()


def test_models_are_those_of_the_simulation(folder, monkeypatch):
    monkeypatch.chdir(folder)
    experiment = experiment_of_file("mine.yaml")
    job = FederationJob("mine-1", experiment.text, SITES)
    assert serve(folder, experiment, job) == {"status": "complete"}
    check_models(folder, folder / "out", folder / "aachen" / "runs" / "mine-1")


def test_a_site_that_does_not_allow_the_model_refuses_before_it_imports_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    text = experiment_of_file("mine.yaml").text
    monkeypatch.setattr("resolvent.comparisons.experiment.own_parts._module", lambda *a: pytest.fail("it was imported"))
    for models in ((), ("networks:large",)):
        with pytest.raises(InputError, match="this participant does not allow it"):
            experiment_from_text(text, "mine", models=models)
