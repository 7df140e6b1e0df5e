"""Files with which a federation runs as services: units of systemd, a Dockerfile, and a compose file.

The files are made from the consortium and the kits. The units are for one machine each: copy that of a participant,
with its kit, to its machine. The compose file starts the server and all sites on one machine, such as for a trial.
"""

import shlex
from pathlib import Path

from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.lead.engines import lead_kit
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.kits import SERVER_KIT

LIVE_PORT = 8010  # of the server's page, inside the machine
_PROGRAM, _HOME = "/opt/resolvent/bin/resolvent", "/srv/resolvent"
_UNIT = """\
[Unit]
Description={title}
After=network-online.target
Wants=network-online.target

[Service]
ExecStart={command}
User=resolvent
Restart=always
RestartSec=10
KillSignal=SIGTERM
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=true
PrivateTmp=true
ProtectSystem=strict
ProtectHome=true
ReadWritePaths={home}
Environment=HOME={home}

[Install]
WantedBy=multi-user.target
"""
_DOCKERFILE = """\
# An image for every participant of a federation. A kit is a volume, and never part of the image.
FROM python:3.12-slim
ARG RESOLVENT=resolvent[{engine}]
RUN python -m pip install --no-cache-dir "$RESOLVENT" \\
 && useradd --create-home --home-dir {home} --uid 10001 resolvent
USER resolvent
WORKDIR {home}
ENTRYPOINT ["resolvent"]
"""


def command_of(kind: str, home: str, name: str, *, live: bool = False) -> list[str]:
    """The arguments of ``resolvent`` that start a participant.

    Args:
        kind: ``server`` or ``party``.
        home: the folder that has the kit in ``kits/NAME``, and of a site its file in ``sites/NAME/site.yaml``.
        live: whether the live page is served to the participant's own machine.
    """
    site = [] if kind == "server" else ["--site", f"{home}/sites/{name}/site.yaml"]
    return [kind, "start", "--kit", f"{home}/kits/{name}", *site, *(["--live", str(LIVE_PORT)] if live else [])]


def write_services(folder: Path, kits: Path, plan: Consortium) -> list[Path]:
    """Write the files of a federation's services; returns their paths."""
    if missing := [name for name in (SERVER_KIT, *plan.sites) if not (kits / name).is_dir()]:
        raise InputError(f"{kits} has no kit of {', '.join(missing)}: run resolvent federation new first")
    folder.mkdir(parents=True, exist_ok=True)
    texts = {"Dockerfile": _DOCKERFILE.format(engine=plan.engine, home=_HOME),
             "compose.yaml": write_yaml(_compose(kits, plan))}
    for name in (SERVER_KIT, *plan.sites):
        kind = "server" if name == SERVER_KIT else "party"
        command = shlex.join([_PROGRAM, *command_of(kind, _HOME, name, live=kind == "server")])
        texts[f"resolvent-{name}.service"] = _UNIT.format(
            title=f"Federation {plan.name}: {name}", command=command, home=_HOME)
    for file, text in texts.items():
        write_text(folder / file, text)
    return [folder / file for file in texts]


def _compose(kits: Path, plan: Consortium) -> dict[str, object]:
    """The server and all sites as services of one machine; sites wait until the server runs."""
    kits = kits.resolve()
    volume = f"{kits}/{{0}}:{_HOME}/kits/{{0}}"
    common = {"build": ".", "image": f"resolvent-{plan.engine}", "restart": "unless-stopped", "init": True}
    network: dict[str, object] = {"networks": ["federation"]}
    check = ["CMD", "resolvent", "server", "status", "--kit", f"{_HOME}/kits/{SERVER_KIT}"]
    server: dict[str, object] = {
        **common, "command": command_of("server", _HOME, SERVER_KIT), "volumes": [volume.format(SERVER_KIT)],
        "networks": {"federation": {"aliases": [plan.host]}}, "ports": [f"{plan.port}:{plan.port}"],
        "healthcheck": {"test": check, "interval": "20s", "timeout": "20s", "start_period": "60s"}}
    sites = {name: {**common, **network, "command": command_of("party", _HOME, name), "volumes": [
        volume.format(name), f"{kits.parent}/sites/{name}:{_HOME}/sites/{name}:ro"],
        "depends_on": {SERVER_KIT: {"condition": "service_healthy"}}} for name in plan.sites}
    lead = lead_kit(kits, plan).name
    if lead == SERVER_KIT:  # Flower's server accepts a lead on its own machine only
        network = {"network_mode": f"service:{SERVER_KIT}"}
    # docker compose run --rm lead federate experiments/mine.yaml --kit kits/LEAD --out runs/mine
    person = {**common, **network, "restart": "no", "profiles": ["lead"], "volumes": [
        volume.format(lead), f"{kits.parent}/experiments:{_HOME}/experiments:ro", f"{kits.parent}/runs:{_HOME}/runs"]}
    return {"name": plan.name.lower(), "services": {SERVER_KIT: server, **sites, "lead": person},
            "networks": {"federation": {}}}
