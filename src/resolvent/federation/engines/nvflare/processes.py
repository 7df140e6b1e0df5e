"""Starts the processes of NVIDIA FLARE: that of the server and that of a site."""

from collections.abc import Mapping, Sequence

from resolvent.federation.engines.nvflare.provisioning import prepare_kit
from resolvent.federation.engines.processes import EngineProcess, start_process
from resolvent.federation.protocol.kits import KitNote

_MODULES = {"server": ("nvflare.private.fed.app.server.server_train", "fed_server.json"),
            "site": ("nvflare.private.fed.app.client.client_train", "fed_client.json")}
# Seconds for which the server waits for sites that do not end, after the end of its program; otherwise 900. Only then
# the lead has the outcome.
_SETTINGS = {"NVFLARE_CLIENT_OUTCOME_WAIT_TIMEOUT": "10"}


def start_engine(note: KitNote, allowed_classes: Sequence[str], environment: Mapping[str, str]) -> EngineProcess:
    """Start the server's process or a site's.

    Args:
        allowed_classes: full names of the classes that a job may name.
        environment: variables for the processes, in addition to those of this one.
    """
    prepare_kit(note.kit, allowed_classes)
    module, settings = _MODULES[note.kind]
    options = ["secure_train=true", "org=federation", "config_folder=config"]
    options += [] if note.kind == "server" else [f"uid={note.name}"]
    command = ["resolvent.federation.engines.nvflare.start", module, "-m", str(note.kit), "-s", settings]
    return start_process(note.kit, [*command, "--set", *options], {**_SETTINGS, **environment})
