"""Large messages over NVIDIA FLARE: the sender cuts blocks from the parts of a message, and the receiver joins them.

The engine copies a value several times. Objects that a decomposer hands to its download service are different: the
receiver asks for one block after the other. Its decomposer of arrays holds a message as many arrays, which have to be
joined by another copy. Here the receiver appends each block to the bytes of the message.
"""

from collections.abc import Sequence
from typing import Any

from nvflare.fuel.f3.streaming.download_service import (
    Consumer,
    Downloadable,
    DownloadStatus,
    ProduceRC,
    download_object,
)
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs.decomposers.via_downloader import ViaDownloaderDecomposer
from typing_extensions import override

from resolvent.federation.protocol.wire import MAX_BYTES

_BLOCK = 2**22  # bytes of a reply of the download service
_OBJECT_TYPE = 200  # a byte; the engine's own types have small numbers
_START = "start"


class LargeMessage:
    """A message that the engine streams.

    Args:
        parts: its bytes, as parts that follow each other.
    """

    def __init__(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self._parts = [memoryview(part).toreadonly() for part in parts]

    def block(self, start: int) -> bytes:
        """The bytes from ``start`` on, at most to the end of a part; empty at the end, and after ``release``."""
        for part in self._parts:
            if start < len(part):
                return bytes(part[start:start + _BLOCK])
            start -= len(part)
        return b""

    def joined(self) -> bytes | memoryview:
        """All bytes; without a copy if they are one part, as those of a received message."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    @property
    def is_released(self) -> bool:
        """Whether its bytes are dropped."""
        return not self._parts

    def release(self) -> None:
        """Drop the bytes. The engine refers to the objects of tasks that have ended for as long as the job runs."""
        self._parts = []


class _Source(Downloadable):
    """The sender's side: it cuts blocks from the message."""

    @override
    def produce(self, state: dict[str, Any], requester: str) -> tuple[str, Any, dict[str, Any]]:
        message: LargeMessage = self.base_obj
        start = state.get(_START) if state else 0
        if message.is_released or type(start) is not int or start < 0:
            return ProduceRC.ERROR, None, {}
        block = message.block(start)
        return (ProduceRC.OK, block, {_START: start + len(block)}) if block else (ProduceRC.EOF, None, {})

    @override
    def downloaded_to_one(self, to_receiver: str, status: str) -> None:
        if status == DownloadStatus.SUCCESS:  # otherwise the receiver asks again
            self.base_obj.release()


class _Target(Consumer):
    """The receiver's side: it appends the blocks. The operating system moves the pages of a large buffer that grows."""

    supports_pipelining = True  # the state is returned as it was

    def __init__(self) -> None:
        super().__init__()
        self.content, self.error = bytearray(), ""

    @override
    def consume(self, ref_id: str, state: dict[str, Any], data: Any) -> dict[str, Any]:
        if not isinstance(data, bytes) or len(self.content) + len(data) > MAX_BYTES:
            raise ValueError(f"a block is not bytes, or the message has more than {MAX_BYTES} bytes")
        self.content += data
        return state

    @override
    def download_completed(self, ref_id: str) -> None:
        """All blocks have been appended."""

    @override
    def download_failed(self, ref_id: str, reason: str) -> None:
        self.content, self.error = bytearray(), reason


class _Decomposer(ViaDownloaderDecomposer):
    def __init__(self) -> None:
        super().__init__(_BLOCK, "resolvent_")

    @override
    def supported_type(self) -> type:
        return LargeMessage

    @override
    def get_download_dot(self) -> int:
        return _OBJECT_TYPE

    @override
    def to_downloadable(self, items: dict[str, Any], max_chunk_size: int, fobs_ctx: dict[str, Any]) -> Downloadable:
        (message,) = items.values()  # a task and its result have one message
        return _Source(message)

    @override
    def download(self, from_fqcn: str, ref_id: str, per_request_timeout: float, cell: Any, secure: bool = False,
                 optional: bool = False, abort_signal: Any = None,
                 progress_cb: Any = None) -> tuple[str, dict[str, LargeMessage]]:
        target = _Target()
        download_object(from_fqcn, ref_id, per_request_timeout, cell, target, secure, optional, abort_signal,
                        progress_cb=progress_cb)
        return target.error, {"T0": LargeMessage([target.content])}

    @override
    def native_decompose(self, target: LargeMessage, manager: Any = None) -> bytes:
        return bytes(target.joined())

    @override
    def native_recompose(self, data: bytes, manager: Any = None) -> LargeMessage:
        return LargeMessage([data])


fobs.register(_Decomposer)
