"""Answers the messages of a site's SuperNode in this process, with a ClientApp of the installed library.

Flower starts a process for each message, which installs and runs the app bundle (FAB) of the run. Here the SuperNode is
started with ``--isolation process``, and this process takes the place of Flower's executor: the bundle is not opened,
so that no code that was sent runs at the site, and the party's programs are compiled once.
"""

import logging
import time
from collections.abc import Callable

import httpx
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.runtime import run_clientapp
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from resolvent.federation.engines.flower.link import TaskSource, retry_soon

# Seconds between two requests for a message: the pauses become longer, because each request takes CPU time.
_MIN_PAUSE, _MAX_PAUSE, _GROWTH = 0.02, 0.3, 1.3
_log = logging.getLogger(__name__)
retry_soon(run_clientapp, "pull_and_inflate_object_from_tree")


def answer_messages(app: ClientApp, address: str, secret: bytes, is_running: Callable[[], bool]) -> None:
    """Answer messages until the SuperNode has ended.

    Args:
        address: host and port at which the SuperNode serves its executor, on this machine.
        is_running: whether the SuperNode is running.
    """
    source, pause = TaskSource(address, secret, None), _MIN_PAUSE
    while is_running():
        try:
            task = source.acquire(TaskType.CLIENT_APP)
            if task is not None:
                _answer(app, address, task[1])
                pause = _MIN_PAUSE
                continue
        except httpx.TransportError:  # the SuperNode is starting
            pass
        except Exception:
            _log.exception("a message could not be answered")
        time.sleep(pause)
        pause = min(pause * _GROWTH, _MAX_PAUSE)


def _answer(app: ClientApp, address: str, token: str) -> None:
    client = RuntimeHttpClient.from_server_address(
        server_address=address, insecure=True, root_certificates=None, interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), RuntimeTokenHttpInterceptor(token)])
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    try:
        heartbeat.start()
        message, context, _, _ = pull_task_input(client)
        push_message(client, app(message=message, context=context), context)
        push_task_output(client, context, SubStatus.COMPLETED, "")
    finally:
        heartbeat.stop()
        client.close()
