"""Where CUDA Agent keeps what it can make again: built objects, baselines, measured ceilings, locks."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$CUDA_AGENT_CACHE, else $XDG_CACHE_HOME/cuda-agent, else ~/.cache/cuda-agent. Made if missing, for its user
    alone."""
    explicit = os.environ.get("CUDA_AGENT_CACHE")
    if explicit:
        path = Path(explicit)
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cuda-agent"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path.absolute()
