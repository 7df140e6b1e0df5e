"""What a federation does differently for each engine, and models of the user's own that a participant allows."""

import json
import os
import re
from pathlib import Path

import pytest

from resolvent.cli import lead, site
from resolvent.data.files.folder_lock import RunningError
from resolvent.errors import InputError
from resolvent.federation.lead.engines import ENGINES, require_engine
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.files import read_consortium, read_site
from resolvent.federation.protocol.kits import KitNote, kit_note, started_once, write_kit_note
from resolvent.federation.site.check import check_site

ROOT = Path(__file__).parents[2]
FLOWER = "name: hearts\nhost: hospitals\nsites: [aachen, berlin]\nlead: l@example.org\nengine: flower\n"
EXPERIMENT = """
data: {label: ill, test: 0.3}
model: networks:small
solver: {name: SGD, learning_rate: 0.1}
algorithms: [fedavg]
rounds: 2
"""
NETWORK = "import resolvent as rv\ndef small(features, classes): return rv.models.logistic(features, classes)\n"


def consortium(tmp_path, text):
    path = tmp_path / "consortium.yaml"
    path.write_text(text)
    return read_consortium(path)


def test_the_address_of_an_engine(tmp_path):
    """Over Flower it is the name of a SuperLink in the lead's configuration."""
    assert consortium(tmp_path, FLOWER).address == "hospitals"
    assert consortium(tmp_path, FLOWER.replace("flower", "nvflare")).address == "hospitals:8002"


@pytest.mark.parametrize(("text", "message"), [
    (FLOWER.replace("lead: l@example.org\n", ""), "lead: '' is not an e-mail address"),
    (FLOWER.replace("hospitals", "fed.example.org"), ":2: host: 'fed.example.org' cannot be the name of a SuperLink"),
    (f"{FLOWER}members: [eye@example.org]\n", ":6: members: Flower knows no persons"),
    (FLOWER.replace("flower", "flowers"), ":5: engine: 'flowers' is not a valid value; did you mean 'flower'? Allowed: "
     "nvflare, flower"),
])
def test_mistakes_about_the_engine(tmp_path, text, message):
    with pytest.raises(InputError) as refused:
        consortium(tmp_path, text)
    assert message in str(refused.value)


def test_a_kit_remembers_its_engine(tmp_path):
    (tmp_path / "startup").mkdir()
    write_kit_note(tmp_path, kind="site", name="aachen", address="fed.example.org:8002")
    assert KitNote(tmp_path).engine == "flower"
    with pytest.raises(InputError, match="is the kit of a site, and this command needs that of the server"):
        lead.serve(tmp_path)
    with pytest.raises(InputError, match="this command needs that of a person, such as the lead"):
        kit_note(tmp_path, "person")
    assert kit_note(tmp_path, "site").name == "aachen"
    (tmp_path / "startup" / "kit.json").unlink()
    (tmp_path / "startup" / "fed_admin.json").write_text(
        json.dumps({"admin": {"username": "l@example.org", "host": "h", "port": 1}}))
    note = KitNote(tmp_path)
    assert (note.engine, note.kind, note.name, note.address) == ("nvflare", "person", "l@example.org", "h:1")


@pytest.mark.parametrize("kind", ["server", "site"])
def test_a_kit_that_is_started_is_not_started_again(kind, site_folder, tmp_path, monkeypatch, capsys):
    """The second command is refused before it starts a process; the kit is free when the first one has ended."""
    kit, started = tmp_path / "kit", []
    (kit / "startup").mkdir(parents=True)
    write_kit_note(kit, kind=kind, name="aachen", address="fed.example.org:8002")
    monkeypatch.setattr("resolvent.federation.lead.engines.require_engine", lambda engine: None)
    monkeypatch.setattr("resolvent.cli.supervision.start_participant", lambda *args: 1 / 0)

    def start():
        return (lead.serve(kit) if kind == "server" else
                site.start(kit, site_folder / "site.yaml"))

    with started_once(KitNote(kit)), pytest.raises(RunningError, match=(
            rf"^the kit .*kit is started already, by process {os.getpid()} on .*: aachen runs once; end that process")):
        started.append(start())
    assert capsys.readouterr().out == ""
    with pytest.raises(ZeroDivisionError):
        start()
    assert {path.name for path in kit.iterdir()} == {"startup"}


def test_an_engine_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr("resolvent.federation.lead.engines.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"Flower is not installed: run pip install 'resolvent\[flower\]'"):
        require_engine("flower")


def test_an_engine_of_another_version_than_the_pinned_one_is_refused(monkeypatch):
    """The adapter of NVIDIA FLARE uses internal interfaces, which change without notice."""
    facts = ENGINES["nvflare"]
    assert f'nvflare = ["nvflare=={facts.version}"' in (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr("resolvent.federation.lead.engines.find_spec", lambda name: name)
    monkeypatch.setattr("resolvent.federation.lead.engines.version", lambda name: "9.9")
    with pytest.raises(InputError, match=rf"{facts.title} 9.9 is installed, and .* {facts.version} only: run pip"):
        require_engine("nvflare")
    require_engine("flower")


def test_the_app_of_flower_uses_its_public_modules_and_nothing_else_does():
    folder = ROOT / "src" / "resolvent" / "federation" / "engines" / "flower"
    used = {path.name: {*re.findall(r"(?:from|import) (flwr[\w.]*)", path.read_text())} for path in folder.glob("*.py")}
    assert {name: names for name, names in used.items() if names} == {
        "relay.py": {"flwr.app", "flwr.clientapp", "flwr.serverapp"}}


# Models of the user's own


@pytest.fixture
def site_folder(tmp_path, monkeypatch):
    """A site's folder with its own module, and another folder, which is the current one."""
    folder, other = tmp_path / "site", tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
    (folder / "networks.py").write_text(NETWORK)
    (folder / "patients.csv").write_text("age,ill\n" + "".join(f"{n},{'yes' if n % 2 else 'no'}\n" for n in range(40)))
    (folder / "site.yaml").write_text("table: patients.csv\nmodels: ['networks:small']\n")
    monkeypatch.chdir(other)
    return folder


def test_a_model_that_a_site_allows_comes_from_its_folder(site_folder, tmp_path):
    file = read_site(site_folder / "site.yaml")
    assert (file.models, file.folder) == (("networks:small",), site_folder)
    experiment = experiment_from_text(EXPERIMENT, "mine", models=file.models, folder=file.folder)
    assert "networks:small" in experiment.text
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    lines = "\n".join(check_site(file, "aachen", tmp_path / "mine.yaml"))
    assert "reply of phase 1, every round" in lines


@pytest.mark.parametrize("models", [(), ("networks:large",), ("networks",)])
def test_another_model_is_refused_before_it_is_imported(site_folder, models, monkeypatch):
    monkeypatch.setattr("resolvent.comparisons.experiment.own_parts._module", lambda *a: pytest.fail("it was imported"))
    with pytest.raises(InputError, match="this participant does not allow it"):
        experiment_from_text(EXPERIMENT, "mine", models=models, folder=site_folder)


def test_the_check_of_a_site_imports_no_module_that_it_does_not_allow(site_folder, tmp_path):
    (tmp_path / "mine.yaml").write_text(EXPERIMENT)
    (site_folder / "site.yaml").write_text("table: patients.csv\n")
    with pytest.raises(InputError, match="this participant does not allow it"):
        list(check_site(read_site(site_folder / "site.yaml"), "aachen", tmp_path / "mine.yaml"))


def test_the_lead_has_the_module_in_the_current_folder(site_folder, monkeypatch):
    monkeypatch.chdir(site_folder)
    (site_folder / "mine.yaml").write_text(EXPERIMENT)
    assert experiment_of_file("mine.yaml").labels == ("fedavg",)


def test_a_model_of_the_library_is_not_listed(site_folder):
    (site_folder / "site.yaml").write_text("table: patients.csv\nmodels: [logistic]\n")
    with pytest.raises(InputError, match=r":2: models: 'logistic' is not module:function"):
        read_site(site_folder / "site.yaml")
