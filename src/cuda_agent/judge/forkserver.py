"""The zygote process: imports torch and inductor once, then forks referees and confined runners on request."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from cuda_agent.judge.wire import Channel, ChannelClosed
from cuda_agent.sandbox import Policy, available_level, die_with_parent, fork_confined

# A quarter of a second that each task's runner would spend on them again
_OF_A_FIRST_COMPILE = ("sympy.physics.units", "sympy.tensor.tensor", "torch.distributed.tensor.experimental")


def _serve(control: Channel, kind: str) -> None:
    allowed = os.sched_getaffinity(0)
    import torch._dynamo
    import torch._inductor.compile_fx
    import torch.utils.cpp_extension  # noqa: F401  (every candidate's build shims import it)

    from cuda_agent.judge import referee, runner

    for name in _OF_A_FIRST_COMPILE:
        with suppress(ImportError):
            importlib.import_module(name)
    if kind == "cpu":
        # OpenMP has bound this thread to its first place. Forks are to use all cores but while they are timed.
        runner.set_places(os.sched_getaffinity(0), allowed)
        os.sched_setaffinity(0, allowed)
    available_level()  # finding out forks and waits
    gc.collect()
    gc.freeze()  # or each collection in a runner would walk, and copy, all that was imported here
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children reap themselves
    while True:
        request, (channel_fd, output_fd) = control.recv()
        policy = Policy.from_json(request["policy"])
        if request["role"] == "referee":
            pid, status_fd = _fork_referee(partial(referee.main, channel_fd, kind), output_fd, control)
        else:
            main = partial(runner.main, channel_fd, kind)
            child = fork_confined(main, policy, close_fds_except=[channel_fd], output_fd=output_fd)
            pid, status_fd = child.pid, child.status_fd
        os.close(channel_fd)
        os.close(output_fd)
        control.send({"pid": pid}, [status_fd])
        os.close(status_fd)


def _fork_referee(main: Callable[[], None], output_fd: int, control: Channel) -> tuple[int, int]:
    """Our own code: not confined, but it dies with the zygote."""
    status_read, status_write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(status_write)
        return pid, status_read
    try:
        os.setsid()
        die_with_parent()
        control.close()
        os.close(status_read)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.write(status_write, b'{"level": "none", "gaps": []}\n')
        main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    try:
        _serve(Channel.from_fd(int(sys.argv[1])), sys.argv[2])
    except ChannelClosed:
        os._exit(0)
