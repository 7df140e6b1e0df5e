"""The definition of a job of NVIDIA FLARE: plain data and the names of installed classes, and no code.

This module does not import the engine.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUTCOME_FILE, RESULTS_FOLDER = "outcome.json", "resolvent"
PROGRESS_TOPIC, TASK = "resolvent_progress", "message"
_REQUEST_INTERVAL = 0.05  # seconds between two requests of a site for a task; the engine's default is 2


def job_text(job: Mapping[str, Any]) -> str:
    """What the lead sends to ``FederationServer``, as text in which the engine replaces no variables."""
    return base64.b64encode(json.dumps(job).encode()).decode()


def read_job_text(text: str) -> dict[str, Any]:
    """The job of a text of ``job_text``."""
    job: dict[str, Any] = json.loads(base64.b64decode(text))
    return job


def write_job(folder: Path, name: str, job: Mapping[str, Any], server_class: str, site_class: str) -> Path:
    """Write the definition of a job, which has no code: it names installed classes.

    Args:
        job: plain data for ``FederationServer.run``; ``sites`` are the names of the sites.
        server_class: full name of ``FederationServer``.
        site_class: full name of ``FederationSite``.

    Returns:
        The job's folder.
    """
    sites = list(job["sites"])
    parts = {
        "meta.json": {"name": name, "resource_spec": {}, "min_clients": len(sites), "mandatory_clients": sites,
                      "deploy_map": {"app": ["server", *sites]}},
        "app/config/config_fed_server.json": {
            "format_version": 2, "server": {"task_request_interval": _REQUEST_INTERVAL},
            "task_data_filters": [], "task_result_filters": [], "components": [],
            "workflows": [{"id": "server", "path": server_class, "args": {"job": job_text(job)}}]},
        "app/config/config_fed_client.json": {
            "format_version": 2, "task_data_filters": [], "task_result_filters": [], "components": [],
            "executors": [{"tasks": [TASK], "executor": {"path": site_class, "args": {}}}]},
    }
    target = folder / name
    for path, content in parts.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return target
