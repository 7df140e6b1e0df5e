"""Services: the units and the compose file are valid, and their commands are commands of this library.

The participants of the compose file run as plain processes at night, over NVIDIA FLARE.
"""

import configparser
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import wraps
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tyro
from ruamel.yaml import YAML

from resolvent.cli import federation as commands
from resolvent.errors import InputError
from resolvent.federation.lead.services import write_services
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.kits import write_kit_note

SITES, HOME = ("aachen", "berlin", "celle"), "/srv/resolvent"


@pytest.fixture
def services(tmp_path):
    """The files of a federation with three sites, whose kits are notes only."""
    for name in ("server", *SITES):
        (tmp_path / "kits" / name / "startup").mkdir(parents=True)
        write_kit_note(tmp_path / "kits" / name, kind="server" if name == "server" else "site", name=name,
                       address="fed.example.org:8002")
    plan = Consortium(name="Hearts", host="fed.example.org", sites=SITES, engine="flower")
    return {path.name: path for path in write_services(tmp_path / "services", tmp_path / "kits", plan)}


def parsed(arguments):
    """Check that arguments are those of a command, without running it."""
    calls, (name, *others) = [], arguments
    function = {"server": commands.server, "party": commands.party}[name]
    tyro.cli(wraps(function)(lambda *args, **values: calls.append((args, values))), args=others)
    assert len(calls) == 1


def test_units_start_every_participant_and_protect_the_machine(services):
    for name in ("server", *SITES):
        unit = configparser.ConfigParser(strict=True, interpolation=None)
        unit.optionxform = str
        unit.read_string(services[f"resolvent-{name}.service"].read_text())
        program, *arguments = shlex.split(unit["Service"]["ExecStart"])
        assert Path(program).name == "resolvent"
        parsed(arguments)
        assert f"{HOME}/kits/{name}" in arguments
        assert {unit["Service"][key] for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome")} == {"true"}
        assert unit["Service"]["UMask"] == "0077"
        assert unit["Service"]["Restart"] == "always"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(services, tmp_path):
    for name in ("server", *SITES):
        text = services[f"resolvent-{name}.service"].read_text()
        path = tmp_path / f"resolvent-{name}.service"
        # The program and the user are not on this machine.
        path.write_text(text.replace("/opt/resolvent/bin/resolvent", "/bin/true").replace("User=resolvent\n", ""))
        answer = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=600,
                                check=False)
        assert path.name not in answer.stderr, answer.stderr


def test_the_compose_file_starts_the_server_and_three_sites(services, tmp_path):
    compose = YAML(typ="safe").load(services["compose.yaml"].read_text())
    assert [*compose["services"]] == ["server", *SITES, "lead"]
    mounted = {}
    for name in ("server", *SITES):
        service = compose["services"][name]
        parsed(service["command"])
        for volume in service["volumes"]:
            source, target, *_ = volume.split(":")
            mounted[target] = source
        assert f"{HOME}/kits/{name}" in mounted
        assert name == "server" or service["depends_on"] == {"server": {"condition": "service_healthy"}}
    assert mounted[f"{HOME}/kits/berlin"] == str(tmp_path / "kits" / "berlin")
    assert mounted[f"{HOME}/sites/berlin"] == str(tmp_path / "sites" / "berlin")
    server = compose["services"]["server"]
    assert server["networks"]["federation"]["aliases"] == ["fed.example.org"]
    parsed(server["healthcheck"]["test"][2:])
    lead = compose["services"]["lead"]  # Flower's server accepts a lead on its own machine only
    assert (lead["network_mode"], "networks" in lead) == ("service:server", False)
    docker = services["Dockerfile"].read_text()
    assert "resolvent[flower]" in docker
    assert "USER resolvent" in docker
    assert "COPY" not in docker  # no kit is in the image


def test_services_need_the_kits(tmp_path):
    plan = Consortium(name="hearts", host="localhost", sites=SITES, engine="flower")
    with pytest.raises(InputError, match="no kit of server, aachen, berlin, celle"):
        write_services(tmp_path / "services", tmp_path / "kits", plan)


@contextlib.contextmanager
def started(command, log):
    """A command of the compose file as a process, which is ended by its id."""
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "resolvent.cli", *command], stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(600)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_commands_of_the_compose_file_run_a_federation_of_three(tmp_path):
    """Its paths are those of this machine; the health check waits for the server, and the lead runs an experiment."""
    pytest.importorskip("nvflare")
    from resolvent.federation.engines.processes import free_port

    (tmp_path / "consortium.yaml").write_text(
        f"name: hearts\nhost: localhost\nport: {free_port()}\nsites: [aachen, berlin, celle]\nlead: lead@example.org\n")
    rng = np.random.default_rng(0)
    for site in SITES:
        (tmp_path / "sites" / site).mkdir(parents=True)
        age = rng.normal(50, 12, 200)
        pd.DataFrame({"age": age, "ill": np.where(age + rng.normal(0, 5, 200) > 50, "yes", "no")}).to_csv(
            tmp_path / "sites" / site / "table.csv", index=False)
        (tmp_path / "sites" / site / "site.yaml").write_text("table: table.csv\n")
    (tmp_path / "mine.yaml").write_text("data: {label: ill}\nmodel: logistic\nsolver: {name: SGD, learning_rate: 0.1, "
                                        "batch_size: 10, epochs: 1}\nalgorithms: {FedAvg: fedavg}\nrounds: 3\n")
    commands.federation("new", tmp_path / "consortium.yaml")
    commands.federation("services", tmp_path / "consortium.yaml")
    compose = YAML(typ="safe").load((tmp_path / "services" / "compose.yaml").read_text())

    assert compose["services"]["lead"]["networks"] == ["federation"]

    def here(arguments):
        return [text.replace(HOME, str(tmp_path)) for text in arguments]

    def is_healthy():
        test = here(compose["services"]["server"]["healthcheck"]["test"][2:])
        return subprocess.run([sys.executable, "-m", "resolvent.cli", *test], timeout=600, check=False,
                              capture_output=True).returncode == 0

    assert not is_healthy()
    with contextlib.ExitStack() as stack:
        stack.enter_context(started(here(compose["services"]["server"]["command"]), tmp_path / "server.log"))
        end = time.monotonic() + 600
        while not is_healthy() and time.monotonic() < end:
            time.sleep(1)
        for site in SITES:
            stack.enter_context(started(here(compose["services"][site]["command"]), tmp_path / f"{site}.log"))
        lead = subprocess.run(  # until it ends
            [sys.executable, "-m", "resolvent.cli", "federate", str(tmp_path / "mine.yaml"), "--kit",
             str(tmp_path / "kits" / "lead@example.org"), "--out", str(tmp_path / "run")], timeout=500, check=False,
            capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
        assert lead.returncode == 0, lead.stderr[-2000:]
        assert is_healthy()
    assert (tmp_path / "run" / "report.html").is_file()
