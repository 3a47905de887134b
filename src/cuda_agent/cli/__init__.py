"""The command line: argument parsing and rendering. `main` is the console script `cuda-agent`.

Nothing here imports torch before a command needs it, so that `cuda-agent --help` answers at once.
"""

from cuda_agent.cli.boundary import main

__all__ = ["main"]
