"""What `doctor` is told."""

from __future__ import annotations

import pytest

from cuda_agent.sandbox import Level, available_level, probe, spawn
from cuda_agent.sandbox.policy import Policy
from cuda_agent.sandbox.support import LEVEL_VARIABLE


def test_every_missing_item_has_a_reason() -> None:
    offers = probe()
    assert {"namespaces", "user_namespaces", "cgroup_v2", "bubblewrap", "landlock", "ptrace_scope"} <= offers.keys()
    for name, offer in offers.items():
        assert offer.available or offer.reason, name


def test_probe_agrees_with_what_is_reached() -> None:
    assert probe()["namespaces"].available == (available_level() is Level.NAMESPACES)


@pytest.mark.parametrize("level", [Level.LIMITS, Level.NONE])
def test_the_environment_caps_the_level(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, level)
    assert available_level() is level
    assert spawn(["true"], Policy(wall_s=20), cwd="/", env={"PATH": "/usr/bin:/bin"}).level is level
