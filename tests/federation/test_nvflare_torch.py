"""Three sites with a PyTorch model over NVIDIA FLARE, at night: needs the extras ``nvflare`` and ``torch``.

No participant is in a rehearsal: each site and the server allow the model by name.
"""

import json

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("torch")

from federation.torch_sites import SITES, check_models, make_folder
from resolvent.federation.engines.nvflare.provisioning import make_kits
from resolvent.federation.engines.processes import free_port, running
from resolvent.federation.lead.engines import start_participant
from resolvent.federation.lead.lead import FederationEndedError, federate
from resolvent.federation.protocol.experiment import experiment_of_file
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.kits import SERVER_KIT, kit_note
from resolvent.federation.protocol.names import CODE_FOLDER, MODELS, SITE_FILE, runs_of

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("nvflare"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]

LEAD = "lead@example.org"


def test_three_sites_train_a_module_that_each_of_them_allows(tmp_path, monkeypatch):
    folder = make_folder(tmp_path)
    monkeypatch.chdir(folder)
    kits = make_kits(folder / "kits", name="torch", host="localhost", port=free_port(), sites=SITES, lead=LEAD)
    experiment = experiment_of_file("mine.yaml")
    job, lead = FederationJob("", experiment.text, SITES), kit_note(kits[LEAD], "person")
    server = start_participant(kit_note(kits[SERVER_KIT], "server"),
                               {MODELS: json.dumps(["networks:small"]), CODE_FOLDER: str(folder)})
    with running(server):
        files = {site: folder / site / "site.yaml" for site in SITES}
        sites = [start_participant(kit_note(kits[site], "site"), {SITE_FILE: str(files[site])}) for site in SITES]
        with running(sites[0]), running(sites[1]), running(sites[2]):
            allowed = files["celle"].read_text()
            files["celle"].write_text("table: patients.csv\n")
            with pytest.raises(FederationEndedError, match=r"celle: .*networks:small is not a part of the library"):
                federate(lead, experiment, folder / "run", job, print, notify=print)
            files["celle"].write_text(allowed)
            federate(lead, experiment, folder / "run", job, print, notify=print)
    (run,) = [path for path in runs_of(kits["aachen"]).iterdir() if (path / "models").is_dir()]
    check_models(folder, folder / "run", run)
