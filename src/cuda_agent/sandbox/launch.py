"""The keeper's program for `spawn`: `python -I -S launch.py SETTINGS STATUS_FD OUTPUT_FD`. A fresh, single-threaded process,
so that callers with threads never fork. `python -I -S launch.py probe` prints why namespaces cannot be had."""

from __future__ import annotations

import json
import os
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
    settings = json.loads(sys.argv[1])
    argv, env = settings["argv"], settings["env"]

    def execute() -> None:
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
