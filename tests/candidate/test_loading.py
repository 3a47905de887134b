from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate, Toolchain, plan
from cuda_agent.candidate.loading import import_model, materialize
from cuda_agent.errors import CandidateError
from cuda_agent.judge.builder import Builder


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_built_objects_are_found_and_nothing_is_compiled(rmsnorm: Candidate, tmp_path: Path) -> None:
    units = plan(rmsnorm, "cpu", Toolchain.detect("cpu"))
    with Builder(tmp_path / "store") as builder:
        objects = {built.unit.installed: built.path for built in builder.build(units, 60) if built.path}
    stale = replace(rmsnorm, files={**rmsnorm.files, "ops.py": b"raise SystemExit('the candidate brought this')"})
    materialize(stale.files, objects, tmp_path / "tree", "cpu")
    done = run(
        """
        import os, sys
        from pathlib import Path
        os.environ["PATH"], os.environ["CXX"] = "/nowhere", "/nowhere/g++"  # there is no compiler
        import torch
        from cuda_agent.candidate.loading import import_model
        model = import_model(Path(sys.argv[1]), "launchers")(70)
        assert model.__class__.__module__ == "model_new"
        x = torch.randn(33, 70)
        torch.testing.assert_close(model(x).detach(), torch.nn.functional.rms_norm(x, (70,), eps=1e-5))
        """,
        tmp_path / "tree",
    )
    assert done.returncode == 0, done.stderr


def test_schedule_macros_reach_the_compiler(rmsnorm: Candidate, tmp_path: Path) -> None:
    files = {"kernels/k.cpp": b'extern "C" int value() { return VALUE; }', "model_new.py": b""}
    seen = []
    with Builder(tmp_path) as builder:
        for value in (3, -4):
            schedule = f'{{"k": {{"VALUE": {value}}}}}'.encode()
            candidate = Candidate({**files, "kernels/schedule.json": schedule}, "launchers")
            (built,) = builder.build(plan(candidate, "cpu", Toolchain.detect("cpu")), 60)
            assert built.path is not None
            seen.append(ctypes.CDLL(str(built.path)).value())
    assert seen == [3, -4]


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (b"[1]", "must look like"),
        (b"{", "schedule.json cannot be used"),
        (b'{"rmsnorm": {"A B": 1}}', "not a macro name"),
        (b'{"rmsnorm": {"VEC": "1; rm"}}', "not a macro name"),
        (b'{"rmsnorm": {"VEC": true}}', "not a macro name"),
    ],
)
def test_a_schedule_is_integers_by_macro(rmsnorm: Candidate, schedule: bytes, said: str) -> None:
    broken = replace(rmsnorm, files={**rmsnorm.files, "kernels/schedule.json": schedule})
    with pytest.raises(CandidateError, match=said):
        plan(broken, "cpu", Toolchain.detect("cpu"))


def test_a_source_may_ask_for_few_flags_only(rmsnorm: Candidate) -> None:
    for line, said in [(b"flags=-fplugin=x.so", "flags=-fplugin=x.so"), (b"level=3", "level=")]:
        source = b"// cuda-agent: " + line + b"\n" + rmsnorm.files["kernels/rmsnorm.cpp"]
        with pytest.raises(CandidateError, match=f"kernels/rmsnorm.cpp: .*{said}"):
            plan(replace(rmsnorm, files={"kernels/rmsnorm.cpp": source}), "cpu", Toolchain.detect("cpu"))


def test_files_stay_below_the_tree(tmp_path: Path) -> None:
    for files, objects in [({"../x.py": b""}, {}), ({}, {"/tmp/x.so": b""})]:
        with pytest.raises(CandidateError, match="not a path inside"):
            materialize({"model_new.py": b"", **files}, objects, tmp_path / "tree", "cpu", "single")
    assert not (tmp_path / "x.py").exists()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Model: pass\nclass Other: pass", r"no class ModelNew \(its classes are Model, Other\)"),
        ("", r"no class ModelNew \(it has no class\)"),
        ("def ModelNew(): pass", "ModelNew is function, not a class"),
        ("class ModelNew:\n    def f(:\n", r"model_new.py:2: invalid syntax"),
        ("class ModelNew: pass\x00", "not Python source|model_new.py:"),
    ],
)
def test_a_module_without_its_class_is_refused(source: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "model_new.py").write_text(source)
    path = list(sys.path)
    try:
        with pytest.raises(CandidateError, match=said):
            import_model(tmp_path, "single")
    finally:
        sys.path[:] = path
        sys.modules.pop("model_new", None)


def test_a_second_candidate_is_not_the_first(tmp_path: Path) -> None:
    done = run(
        """
        import sys
        from pathlib import Path
        from cuda_agent.candidate.loading import import_model, materialize
        for value in (1, 2):
            into = Path(sys.argv[1]) / str(value)
            files = {"model_new.py": b"from helper import VALUE\\nclass ModelNew: value = VALUE",
                     "helper.py": f"VALUE = {value}".encode()}
            materialize(files, {}, into, "cpu", "single")
            assert import_model(into, "single").value == value
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
