"""Messages between the judge's processes: length-prefixed JSON over a Unix socket, with file descriptors beside it.

The peer may be hostile: sizes are bounded, nothing is unpickled, and a malformed message is the peer's fault
(`ProtocolError`), never ours.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

MAX_MESSAGE = 64 << 20
_MAX_FDS = 64
_HEADER = struct.Struct("<I")

Message = dict[str, Any]


class ChannelClosed(Exception):
    """The peer is gone."""


class ChannelTimeout(Exception):
    """The peer did not answer in time."""


class ProtocolError(Exception):
    """The peer sent something that is not a message."""


class Channel:
    """One end of a socket pair. Not thread-safe: one conversation at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """Our end as a Channel, and the peer's end as a socket to hand over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._sock.fileno()

    def detach(self) -> int:
        return self._sock.detach()

    def close(self) -> None:
        self._sock.close()

    def hang_up(self) -> None:
        """Close it for all who hold it; a thread that waits in `recv` wakes up to ChannelClosed."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        body = json.dumps(message, separators=(",", ":")).encode()
        if len(body) > MAX_MESSAGE:
            raise ProtocolError(f"message of {len(body)} bytes; at most {MAX_MESSAGE} travel")
        data = _HEADER.pack(len(body)) + body
        try:
            self._sock.settimeout(60)
            if fds:
                sent = socket.send_fds(self._sock, [data], list(fds))
                data = data[sent:]
            self._sock.sendall(data)
        except TimeoutError as error:
            raise ChannelTimeout("the peer does not read") from error
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def recv(self, timeout: float | None = None) -> tuple[Message, list[int]]:
        """The next message and the descriptors that came with it (the caller closes them)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        fds: list[int] = []
        try:
            (size,) = _HEADER.unpack(self._read(_HEADER.size, deadline, fds))
            if size > MAX_MESSAGE:
                raise ProtocolError(f"the peer announces {size} bytes; at most {MAX_MESSAGE} are read")
            message = json.loads(self._read(size, deadline, fds))
            if not isinstance(message, dict):
                raise ProtocolError("the peer sent JSON that is not an object")
        except BaseException as error:
            for fd in fds:
                os.close(fd)
            if isinstance(error, (ValueError, RecursionError)):
                raise ProtocolError(f"the peer sent malformed JSON: {error}") from error
            raise
        return message, fds

    def call(self, message: Message, fds: Sequence[int] = (), timeout: float | None = None) -> Message:
        """Send and wait for the answer; descriptors in the answer are not expected and are closed."""
        self.send(message, fds)
        return self.call_answer(timeout)

    def call_answer(self, timeout: float | None = None) -> Message:
        """The second half of `call`, for a message that was sent before."""
        answer, received = self.recv(timeout)
        for fd in received:
            os.close(fd)
        return answer

    def _read(self, size: int, deadline: float | None, fds: list[int]) -> bytes:
        parts: list[bytes] = []
        missing = size
        while missing:
            if deadline is None:
                self._sock.settimeout(None)
            else:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise ChannelTimeout("no answer in time")
                self._sock.settimeout(left)
            try:
                data, received, _, _ = socket.recv_fds(self._sock, min(missing, 1 << 20), _MAX_FDS)
            except TimeoutError as error:
                raise ChannelTimeout("no answer in time") from error
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            fds.extend(received)
            if not data:
                raise ChannelClosed("the peer closed the connection")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)
