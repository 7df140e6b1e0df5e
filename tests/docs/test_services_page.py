"""The blocks for services: systemd accepts the units, the compose file is one, each command is one of the library."""

import configparser
import re
import shlex
import shutil
import subprocess
from functools import wraps
from pathlib import Path

import pytest
import tyro
from ruamel.yaml import YAML

from resolvent.cli.former_words import present_words
from resolvent.cli.parsing import GROUPS, command_of
from resolvent.errors import InputError

PAGE = (Path(__file__).parents[2] / "docs" / "federation-operations.md").read_text("utf-8").split("\n## Services\n")[1]
HOME, SITES = "/srv/resolvent", ("aachen", "berlin", "celle")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def units():
    """Name of the file of a unit -> its text."""
    names = re.findall(r"`/etc/systemd/system/([^`]+)`", PAGE)
    return dict(zip(names, blocks("ini"), strict=True))


def parsed(arguments):
    """Check that the arguments are those of a command, without running it."""
    calls, (group, name, *others) = [], arguments
    command = command_of(GROUPS[group][1][name])
    tyro.cli(wraps(command)(lambda *args, **values: calls.append((args, values))), args=others)
    assert len(calls) == 1


def test_units_start_their_participants_and_protect_the_machine():
    assert [*units()] == ["resolvent-server.service", "resolvent-site@.service"]
    for name, text in units().items():
        unit = configparser.ConfigParser(strict=True, interpolation=None)
        unit.optionxform = str
        unit.read_string(text)
        service = unit["Service"]
        program, *arguments = shlex.split(service["ExecStart"])
        assert program == "/opt/resolvent/bin/resolvent"
        parsed(arguments)
        participant = "server" if "server" in name else "%i"
        assert f"{HOME}/kits/{participant}" in arguments
        assert {service[key] for key in ("NoNewPrivileges", "PrivateTmp", "ProtectHome")} == {"true"}
        assert (service["UMask"], service["Restart"], service["ReadWritePaths"]) == ("0077", "always", HOME)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path):
    for name, text in units().items():
        path = tmp_path / name.replace("@", "@aachen")
        # The program and the user are not on this machine.
        path.write_text(text.replace("/opt/resolvent/bin/resolvent", "/bin/true").replace("User=resolvent\n", ""))
        answer = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, timeout=600,
                                check=False)
        assert path.name not in answer.stderr, answer.stderr


def test_the_compose_file_starts_the_server_and_three_sites():
    (text,) = blocks("yaml")
    compose = YAML(typ="safe").load(text)
    assert [*compose["services"]] == ["server", *SITES, "lead"]
    for name in ("server", *SITES):
        service = compose["services"][name]
        parsed(service["command"])
        targets = {target: source for source, target in (volume.split(":")[:2] for volume in service["volumes"])}
        assert targets[f"{HOME}/kits/{name}"] == f"./kits/{name}"
        if name != "server":
            assert targets[f"{HOME}/sites/{name}"] == f"./sites/{name}"
            assert f"{HOME}/sites/{name}/site.yaml" in service["command"]
            assert service["depends_on"] == {"server": {"condition": "service_healthy"}}
    program, command, *test = compose["services"]["server"]["healthcheck"]["test"]
    assert (program, command) == ("CMD", "resolvent")
    parsed(test)
    assert compose["services"]["lead"]["profiles"] == ["lead"]  # it does not start with the others
    (docker,) = blocks("dockerfile")
    assert "USER resolvent" in docker
    assert "COPY" not in docker  # no kit is in the image


def test_every_typed_command_is_one_of_the_library():
    lines = [line.partition("#")[0] for block in blocks("bash") for line in block.splitlines()]
    commands = [line.partition("run --rm lead ")[2] or line.partition("bin/resolvent ")[2] for line in lines]
    typed = [shlex.split(command) for command in commands if command]
    assert [words[:2] for words in typed] == [["lead", "clean"], ["lead", "start"]]
    for words in typed:
        parsed(words)


def test_the_old_word_names_the_page():
    with pytest.raises(InputError, match=r"docs/federation-operations\.md"):
        present_words(["federation", "services", "consortium.yaml"])
