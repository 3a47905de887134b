"""Watching a process tree through /proc: memory, processes and threads, time. It runs beside timed code: keep it
cheap."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cuda_agent.sandbox.policy import KilledFor, Policy

_SHORTEST_POLL_S, _LONGEST_POLL_S = 0.025, 0.25
_LOAD = 0.04  # share of one core that watching may cost
_DESCRIPTORS_EVERY_S = 0.5
_CLEARED_FOR_S = 1.0


class Watcher:
    """Says which limit of `policy` the tree exceeds.

    root: the process whose descendants are watched. None: everything in this PID namespace but its init, from a /proc
    of that namespace.
    """

    def __init__(self, policy: Policy, root: int | None) -> None:
        self.policy, self.root = policy, root
        self.started = time.monotonic()
        self.poll_s = _SHORTEST_POLL_S
        self._next_descriptors = self.started + _DESCRIPTORS_EVERY_S
        self._cleared, self._cleared_until = 0, 0.0  # an estimate that an exact count found harmless

    def excess(self) -> KilledFor | None:
        begin = time.monotonic()
        found = self._excess(begin)
        cost = time.monotonic() - begin
        self.poll_s = min(max(cost / _LOAD, _SHORTEST_POLL_S), _LONGEST_POLL_S)
        if self.policy.wall_s is not None:
            left = self.policy.wall_s - (time.monotonic() - self.started)
            self.poll_s = min(self.poll_s, max(left, 0.001))
        return found

    def _excess(self, now: float) -> KilledFor | None:
        if self.policy.wall_s is not None and now - self.started >= self.policy.wall_s:
            return "time"
        members = dict(self.members())
        if sum(status["Threads"] for status in members.values()) > self.policy.processes:
            return "processes"
        limit = self.policy.memory_bytes
        if limit is None:
            return None
        private = sum(status.get("RssAnon", 0) for status in members.values()) * 1024
        shared = sum(status.get("RssShmem", 0) for status in members.values()) * 1024
        if now >= self._next_descriptors:  # memfds that are written to but mapped nowhere
            self._next_descriptors = now + _DESCRIPTORS_EVERY_S
            shared = max(shared, sum(_memfds(members).values()))
        estimate = private + shared
        if estimate <= (limit if now >= self._cleared_until else max(limit, self._cleared)):
            return None
        # Pages shared since a fork and arenas were counted once per process; the exact count is dear, so it is rare.
        if _private_share(members) + _shared_once(members) > limit:
            return "memory"
        self._cleared, self._cleared_until = estimate + limit // 20, now + _CLEARED_FOR_S
        return None

    def members(self) -> Iterator[tuple[int, dict[str, int]]]:
        """(pid, fields of /proc/pid/status) of the tree, sizes in KiB; a zombie has no threads."""
        table = {}
        for name in os.listdir("/proc"):
            if name.isdigit() and (self.root is not None or name != "1"):
                status = _status(int(name))
                if status is not None:
                    table[int(name)] = status
        if self.root is None:
            yield from table.items()
            return
        children: dict[int, list[int]] = {}
        for pid, status in table.items():
            children.setdefault(status["PPid"], []).append(pid)
        pending = list(children.get(self.root, ()))
        while pending:
            pid = pending.pop()
            yield pid, table[pid]
            pending.extend(children.get(pid, ()))


_FIELDS = ("PPid", "Threads", "RssAnon", "RssShmem")


def _status(pid: int) -> dict[str, int] | None:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None  # gone
    fields, dead = {}, False
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key in _FIELDS:
            fields[key] = int(value.split()[0])
        elif key == "State":
            dead = value.split()[0] in "ZX"
    if dead:
        fields["Threads"] = 0
    return fields


def _memfds(pids: dict[int, dict[str, int]]) -> dict[tuple[int, int], int]:
    """Bytes held by each open memfd, by (device, inode)."""
    sizes = {}
    for pid in pids:
        try:
            entries = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for entry in entries:
            path = f"/proc/{pid}/fd/{entry}"
            try:
                if os.readlink(path).startswith("/memfd:"):
                    info = os.stat(path)
                    sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
            except OSError:
                continue
    return sizes


def _private_share(pids: dict[int, dict[str, int]]) -> int:
    """Bytes of anonymous memory, pages that several processes share since a fork divided among them."""
    total = 0
    for pid, status in pids.items():
        share = status.get("RssAnon", 0)
        with suppress(OSError):
            found = re.search(r"^Pss_Anon:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
            share = int(found.group(1)) if found else share
        total += share * 1024
    return total


def _shared_once(pids: dict[int, dict[str, int]]) -> int:
    """Bytes of shared memory of a tree, each object counted once. Where a process forbids the look, all it maps
    counts."""
    held = _memfds(pids)
    unknown = 0
    for pid, status in pids.items():
        if not status.get("RssShmem"):
            continue
        own: dict[tuple[int, int], int] = {}
        try:
            lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
        except OSError:
            unknown += status["RssShmem"] * 1024
            continue
        key: tuple[int, int] | None = None
        for line in lines:
            fields = line.split()
            if "-" in fields[0] and not fields[0].endswith(":"):
                shared = fields[1][3] == "s" or "/memfd:" in line
                major, minor = fields[3].split(":")
                key = (
                    (os.makedev(int(major, 16), int(minor, 16)), int(fields[4]))
                    if shared and fields[4] != "0"
                    else None
                )
            elif key and fields[0] == "Rss:":
                own[key] = own.get(key, 0) + int(fields[1]) * 1024
        for key, size in own.items():
            held[key] = max(held.get(key, 0), size)
    return unknown + sum(held.values())
