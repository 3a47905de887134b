"""A runner as the referee sees it: requests, answers, and how it failed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cuda_agent.judge.wire import Channel, ChannelClosed, ChannelTimeout, Message, ProtocolError


class RunnerFailed(Exception):
    """The foreign code failed. kind: what of (see runner.py), plus crashed, timed_out, protocol."""

    def __init__(self, kind: str, message: str, where: str | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.where = kind, message, where


@contextmanager
def told_as_failures(late: str, gone: str = "the process ended") -> Iterator[None]:
    """What goes wrong on a runner's channel, as RunnerFailed. late, gone: what to say of silence and of its end."""
    try:
        yield
    except ChannelTimeout as error:
        raise RunnerFailed("timed_out", late) from error
    except ChannelClosed as error:
        raise RunnerFailed("crashed", gone) from error
    except ProtocolError as error:
        raise RunnerFailed("protocol", str(error)) from error


class Peer:
    """A runner as the referee sees it."""

    def __init__(self, channel: Channel, timeout: float) -> None:
        self.channel = channel
        self.timeout = timeout

    def ask(self, do: str, *, fds: Sequence[int] = (), **arguments: Any) -> Any:
        """The answer, or RunnerFailed. Build requests in between are not expected here."""
        with told_as_failures(f"no answer within {self.timeout:g} s"):
            return self.answer(self.channel.call({"do": do, **arguments}, fds, self.timeout))

    def run(self, **arguments: Any) -> tuple[float, float]:
        """Have a batch run. Returns when, by our clock (`perf_counter`), the runner said that it had computed, and when
        it said that its outputs lie in their slots."""
        with told_as_failures(f"no answer within {self.timeout:g} s"):
            self.channel.send({"do": "run", **arguments})
            first = self._receive()
            computed = time.perf_counter()
            self.answer(self._receive() if "computed" in first else first)
            return computed, time.perf_counter()

    def _receive(self) -> Message:
        message, fds = self.channel.recv(self.timeout)
        for fd in fds:
            os.close(fd)
        return message

    @staticmethod
    def answer(message: Message) -> Any:
        if "ok" in message:
            return message["ok"]
        error = message.get("error")
        if not isinstance(error, dict):
            raise RunnerFailed("protocol", "the process sent something that is not an answer")
        where = error.get("where")
        text = f"{error.get('type')}: {error.get('message')}"
        kind = str(error.get("kind"))
        if kind not in ("exception", "device_error", "out_of_memory"):
            text = str(error.get("message"))
        return _fail(kind, text[:2000], None if where is None else str(where)[:200])


def _fail(kind: str, message: str, where: str | None) -> Any:
    raise RunnerFailed(kind, message, where)
