"""The connection of the server's programs to its SuperLink: registration of the sites, and the Grid of a run.

These functions of a SuperLink are for programs on its own machine only, see ``flower_gate``. The classes of Flower
behind them are internal, so that the extra ``flower`` names one version.
"""

import contextlib
import functools
import json
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Self

from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, StartRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid, http_grid

from resolvent.federation.engines.flower.kits import AUTHORITY_FILE, SECRET_FILE, SITES_FILE
from resolvent.federation.protocol.kits import KitNote

_ONLINE, _UNREGISTERED = "online", "unregistered"
_START_SECONDS = 30.0
_PAUSE = 0.05  # seconds between two requests for a task
_FIRST_RETRY = 0.05  # seconds
_MAX_WAIT = 600.0  # seconds for an object; Flower waits 7200, in which a site answers no other message
_ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})
# A run of Flower needs an app bundle. This one has no code, and its components are never loaded, see ``flower_site``.
_PROJECT = """\
[project]
name = "resolvent-federation"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "resolvent"

[tool.flwr.app.components]
serverapp = "none:none"
clientapp = "none:none"

[tool.flwr.app.config]
"""


def retry_soon(module: ModuleType, function: str = "pull_objects") -> None:
    """Let a module of Flower ask again soon for an object that is not there yet, and give up after some minutes.

    Flower first waits 1 second. A message is announced before its objects have arrived: in a rehearsal with 51
    exchanges, the server waited 19 times for an object of a reply, and the sites 97 times for an object of a message.
    """
    setattr(module, function, functools.partial(getattr(module, function), initial_backoff=_FIRST_RETRY,
                                                 max_time=_MAX_WAIT))


retry_soon(http_grid)


class TaskSource:
    """Fetches tasks from a SuperLink or a SuperNode that was started with ``--isolation process``.

    Args:
        secret: the shared secret of the two processes.
        certificates: the authority's certificate (PEM); None: the connection stays on this machine, without TLS.
    """

    def __init__(self, address: str, secret: bytes, certificates: bytes | None) -> None:
        self._client = RuntimeHttpClient.from_server_address(
            server_address=address, insecure=certificates is None, root_certificates=certificates, interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_ACQUIRE)])

    def acquire(self, kind: TaskType) -> tuple[int, str] | None:
        """The run and the token of the next task; None if there is no task."""
        answer = self._client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        return (answer.task.run_id, answer.token) if answer.HasField("task") and answer.token else None

    def close(self) -> None:
        """End the connection; no task can be acquired after it."""
        self._client.close()


class SuperLink:
    """A connection to the SuperLink of a server's kit, on the same machine."""

    def __init__(self, note: KitNote) -> None:
        startup = note.kit / "startup"
        self._address = f"127.0.0.1:{note.address.rpartition(':')[2]}"
        self._certificates = (startup / AUTHORITY_FILE).read_bytes()
        self._secret = (startup / SECRET_FILE).read_bytes()
        self._keys = {site: key.encode() for site, key in json.loads((startup / SITES_FILE).read_text("utf-8")).items()}
        self._control = ControlHttpClient.from_server_address(
            self._address, False, self._certificates, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._control.close()

    def register_sites(self) -> None:
        """Let exactly the sites of the kit connect: the SuperLink accepts no other node, and no removed site."""
        known = {bytes(node.public_key): node for node in self._nodes()}
        for key in {*self._keys.values()} - known.keys():
            self._control.RegisterNode(RegisterNodeRequest(public_key=key))
        for key in known.keys() - {*self._keys.values()}:
            self._control.UnregisterNode(UnregisterNodeRequest(node_id=known[key].node_id))

    def nodes(self) -> dict[str, int]:
        """Name of a connected site -> id of its node."""
        names = {key: site for site, key in self._keys.items()}
        return {names[bytes(node.public_key)]: node.node_id for node in self._nodes()
                if bytes(node.public_key) in names and node.status == _ONLINE}

    def connected_sites(self) -> set[str]:
        """The names of the sites that are connected."""
        return {*self.nodes()}

    def _nodes(self) -> Any:
        nodes = self._control.ListNodes(ListNodesRequest()).nodes_info
        return [node for node in nodes if node.status != _UNREGISTERED]

    @contextlib.contextmanager
    def open_run(self) -> Iterator[HttpGrid]:
        """Start a run, in which this process is the ServerApp, and yield its Grid."""
        bundle, _ = build_fab_from_files({"pyproject.toml": _PROJECT.encode()})
        run = self._control.StartRun(StartRunRequest(fab=fab_to_proto(Fab("", bundle, {})),
                                                     federation=NOOP_FEDERATION_ID)).run_id
        grid = HttpGrid(self._address, False, self._certificates, token=self._token_of(run))
        client = grid._runtime_client
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        status = SubStatus.FAILED
        try:
            heartbeat.start()
            task = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
                task.task_id, task.run.run_id, task.context.node_id)
            grid.set_run(run_from_proto(task.run))
            yield grid
            status = SubStatus.COMPLETED
        finally:
            with contextlib.suppress(Exception):  # the SuperLink has ended
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            if heartbeat.is_running:
                heartbeat.stop()
            grid.close()

    def _token_of(self, run: int) -> str:
        """Acquire the task of a run. Tasks of other runs expire, because no program works on them."""
        source, end = TaskSource(self._address, self._secret, self._certificates), time.monotonic() + _START_SECONDS
        try:
            while time.monotonic() < end:
                task = source.acquire(TaskType.SERVER_APP)
                if task is not None and task[0] == run:
                    return task[1]
                time.sleep(_PAUSE)
        finally:
            source.close()
        raise TimeoutError(f"the SuperLink has not started the run within {_START_SECONDS:.0f} s")
