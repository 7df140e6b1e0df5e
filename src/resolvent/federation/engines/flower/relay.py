"""The app that `flwr run` starts: it moves messages between this federation's own processes, and computes nothing.

This file is copied into the folder of the app and needs `flwr` only. The ServerApp does what `resolvent lead start`
asks for, and the ClientApp passes a message on to `resolvent site start`; each connects to its process on the same
machine, with the port and the secret of a file. These processes sign all messages with the keys of their kits.
"""

import contextlib
import json
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

_NAME, _FORMAT = "message", "resolvent"
_SMALL = 2**20  # bytes of a message that is one object of Flower; it divides a larger one, an array, into chunks
server = ServerApp()  # Flower reads these two lines before it imports the file
client = ClientApp()


def _connect(file: Any) -> Any:
    door = json.loads(Path(file).read_text("utf-8"))
    return Client(("127.0.0.1", door["port"]), authkey=bytes.fromhex(door["secret"]))


def _record(content: bytes) -> RecordDict:
    return RecordDict({_NAME: ConfigRecord({_NAME: content}) if len(content) <= _SMALL else
                       ArrayRecord({_NAME: Array("uint8", (len(content),), _FORMAT, content)})})


def _bytes(message: Message) -> bytes:
    value: Any = message.content[_NAME][_NAME]
    content: bytes = value.data if isinstance(value, Array) else value
    return content


def move(grid: Grid, context: Context) -> None:
    """Do what the lead's process asks for, until it ends the connection."""
    with _connect(context.run_config["door"]) as lead, contextlib.suppress(EOFError):
        while True:
            order = json.loads(lead.recv_bytes())
            if "to" in order:
                message = Message(_record(lead.recv_bytes()), order["to"], "query")
                lead.send_bytes(json.dumps([*grid.push_messages([message])]).encode())
            elif "replies to" in order:
                replies = [*grid.pull_messages(order["replies to"])]
                lead.send_bytes(json.dumps([[r.metadata.reply_to_message_id, r.has_error()] for r in replies]).encode())
                for reply in replies:
                    lead.send_bytes(b"" if reply.has_error() else _bytes(reply))
            else:
                lead.send_bytes(json.dumps([*grid.get_node_ids()]).encode())


def answer(message: Message, context: Context) -> Message:
    """The answer of the site's process; without one Flower reports an error."""
    with _connect(context.node_config["door"]) as site:
        site.send_bytes(_bytes(message))
        return Message(_record(site.recv_bytes()), reply_to=message)


server.main()(move)
client.query()(answer)
