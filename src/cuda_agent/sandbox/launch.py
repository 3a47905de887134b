"""The keeper's program for `spawn`: `python -I -S launch.py SETTINGS STATUS_FD OUTPUT_FD`.

A fresh, single-threaded process, so that callers with threads never fork. `launch.py probe` prints why namespaces
cannot be had, `launch.py survey` which ones can.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cuda_agent.sandbox.keeper import keep_child
from cuda_agent.sandbox.policy import Level, Policy
from cuda_agent.sandbox.support import try_namespaces


def main() -> None:
    if sys.argv[1] == "probe":
        print(json.dumps(try_namespaces()))
        return
    if sys.argv[1] == "survey":
        from cuda_agent.sandbox.probe import survey

        print(json.dumps(survey()))
        return
    settings = json.loads(sys.argv[1])
    argv, env = settings["argv"], settings["env"]

    def execute() -> None:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python's own habit, not a program's
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
            sys.exit(127 if isinstance(error, FileNotFoundError) else 126)

    status_fd, output_fd = int(sys.argv[2]), int(sys.argv[3])
    os.set_inheritable(status_fd, False)
    os.set_inheritable(output_fd, False)
    policy = Policy.from_json(settings["policy"])
    level = Level(settings["level"])
    keep_child(execute, policy, level, settings["parent"], status_fd, (), output_fd, Path(settings["cwd"]))


main()
