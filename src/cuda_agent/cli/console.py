"""Where things are printed: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def stdout() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def stderr() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False)


@contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Send what anyone else writes to stdout, native code and child processes included, to stderr.

    Yields the real stdout, so that a program that reads `--json` finds one object and nothing else. The stream stays
    usable after the block.
    """
    sys.stdout.flush()
    saved = os.dup(1)
    stream = sys.stdout
    try:
        os.dup2(2, 1)
        yield stream
    finally:
        stream.flush()
        os.dup2(saved, 1)
        os.close(saved)
