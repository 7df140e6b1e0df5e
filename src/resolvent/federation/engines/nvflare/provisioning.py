"""Startup kits of NVIDIA FLARE: one folder per participant, with its certificate and the address of the server.

The person who makes the kits has the key of the federation's own certificate authority, in ``authority``. Each kit has
the private key of one participant, and goes to this participant only.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.kits import SERVER_KIT

_AUTHORITY = "authority"
_ORGANISATION = "federation"
_CERTIFICATE_DAYS = 360
# The lead starts, stops and downloads experiments. No person may send code (byoc) or run shell commands at a site.
_PERMISSIONS = {
    "lead": {"submit_job": "any", "manage_job": "n:submitter", "download_job": "n:submitter",
             "app_command": "n:submitter", "view": "any", "clone_job": "none", "operate": "none",
             "shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none"},
    "member": {"view": "any"},
}


def make_kits(folder: Path, *, name: str, host: str, port: int, sites: Sequence[str], lead: str,
              members: Sequence[str] = ()) -> dict[str, Path]:
    """Make a kit for each participant; connections need a certificate on both sides (mutual TLS).

    If the folder already has kits of the same federation, the kits of new participants are added: they are signed by
    the same authority, and the kits that exist stay as they are.

    Args:
        host: name or address of the server, as the participants reach it. The server of a loopback address accepts
            connections of this machine only.
        port: TCP port of the server.
        lead: e-mail address of the person who may start experiments.
        members: e-mail addresses of persons who may look at runs only.

    Returns:
        Name of a new kit -> its folder; the server's is ``server``.
    """
    participants: dict[str, tuple[str, str, dict[str, Any]]] = {
        SERVER_KIT: ("server", host, {"fed_learn_port": port, "admin_port": port}),
        **{site: ("client", site, {"allow_log_streaming": False}) for site in sites},
        **{person: ("admin", person, {"role": "lead" if person == lead else "member"})
           for person in (lead, *members)}}
    new = {kit: part for kit, part in participants.items() if not (folder / kit).exists()}
    if not new:
        return {}
    authority = folder / _AUTHORITY
    authority.mkdir(parents=True, exist_ok=True)
    authority.chmod(0o700)
    made = _provision(authority, name, participants)
    kits = {}
    for kit, (_, identity, _) in new.items():
        target = folder / kit
        shutil.move(made / identity, target)
        target.chmod(0o700)
        kits[kit] = target
    shutil.rmtree(made)
    return kits


def _provision(authority: Path, name: str, participants: dict[str, tuple[str, str, dict[str, Any]]]) -> Path:
    """Run NVIDIA FLARE's provisioning; returns the folder with a kit for each identity."""
    try:
        from nvflare.lighter.entity import Participant, Project
        from nvflare.lighter.impl.cert import CertBuilder
        from nvflare.lighter.impl.signature import SignatureBuilder
        from nvflare.lighter.impl.static_file import StaticFileBuilder
        from nvflare.lighter.impl.workspace import WorkspaceBuilder
        from nvflare.lighter.provisioner import Provisioner
    except ImportError as error:
        raise InputError("NVIDIA FLARE is not installed: pip install 'resolvent[nvflare]'") from error
    try:
        project = Project(name, "", [Participant(kind, identity, _ORGANISATION, dict(properties))
                                     for kind, identity, properties in participants.values()])
    except ValueError as error:
        raise InputError(f"NVIDIA FLARE refuses a name: {error}") from error
    builders = [WorkspaceBuilder(), StaticFileBuilder(config_folder="config", scheme="grpc", require_signed_jobs=True),
                CertBuilder(root_valid_days=10 * _CERTIFICATE_DAYS), SignatureBuilder()]
    log = _Messages()
    context = Provisioner(str(authority), builders).provision(project, logger=log)
    made = context.get("current_prod_dir")
    if context.get("build_error") or not made:
        raise InputError(f"NVIDIA FLARE could not make the kits: {' '.join(log.errors)}")
    return Path(made)


class _Messages:
    """Collects the messages of the provisioning, which otherwise prints them."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def debug(self, message: str) -> None:
        """Ignore a message about progress."""

    info = warning = debug

    def error(self, message: str) -> None:
        """Collect an error for the exception of ``_provision``."""
        self.errors.append(message)


def prepare_kit(kit: Path, allowed_classes: Sequence[str]) -> None:
    """Write the local settings of the server or of a site, before it starts.

    Only the named classes of the installed library can run in a job, and no code comes with it. The settings are
    written again at every start, so that they belong to the installed version.
    """
    local = kit / "local"
    template = local / "resources.json.default"
    if not template.is_file():
        raise InputError(f"{kit} is not the kit of a server or of a site: name the folder that the lead sent")
    resources = json.loads(template.read_text("utf-8"))
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [*allowed_classes, *_component_classes(resources)]
    storage = str((kit / "engine").resolve())
    for component in resources.get("components", []):
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = f"{storage}/jobs"
        if component["id"] == "job_scheduler":
            component["args"] = {"max_jobs": 1, "min_schedule_interval": 1.0, "max_schedule_interval": 10.0,
                                 "max_schedule_count": 100}
    if "snapshot_persistor" in resources:
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = f"{storage}/snapshots"
    # The lead does not need the logs of a site: they could quote values of its table.
    resources["components"] = [c for c in resources.get("components", [])
                               if c["id"] not in ("site_log_streamer", "log_receiver")]
    kind = "ServerSessions" if (kit / "startup" / "fed_server.json").is_file() else "SiteSession"
    resources["components"].append({
        "id": "resolvent_sessions", "path": f"resolvent.federation.engines.nvflare.sessions.{kind}",
        "args": {"kit": str(kit.resolve())}})
    if "allow_log_streaming" in resources:
        resources["allow_log_streaming"] = False
    write_text(local / "resources.json", json.dumps(resources, indent=2))
    write_text(local / "authorization.json",
               json.dumps({"format_version": "1.0", "permissions": _PERMISSIONS}, indent=2))
    (kit / "transfer").mkdir(exist_ok=True)


def _component_classes(resources: dict[str, Any]) -> list[str]:
    """The classes of the engine's own components, which these settings name."""
    def paths(part: Any) -> list[str]:
        if isinstance(part, dict):
            return [path for key, value in part.items()
                    for path in ([value] if key == "path" and isinstance(value, str) else paths(value))]
        return [path for item in part for path in paths(item)] if isinstance(part, list) else []

    return sorted(set(paths(resources)))
