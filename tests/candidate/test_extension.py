from __future__ import annotations

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from cuda_agent.candidate import BuildUnit, Candidate, Toolchain, plan
from cuda_agent.candidate.extension import extension_unit
from cuda_agent.candidate.shims import inline_sources
from cuda_agent.errors import CandidateError
from cuda_agent.judge.builder import Builder

CPU = Toolchain("cpu", "/usr/bin/g++", "g++ 12")
HOPPER = Toolchain("cuda", "/usr/local/cuda/bin/nvcc", "nvcc 13.0", "sm_90")


def request(**changes: Any) -> dict[str, Any]:
    return {"name": "mine", "files": {"main.cpp": ""}, "sources": ["main.cpp"], **changes}


def ninja(unit: BuildUnit) -> str:
    return unit.files["build.ninja"].decode()


def test_load_inline_is_built_outside_and_imported(tmp_path: Path) -> None:
    """The runner's half in a process of its own, with the builder's half here between two runs of it."""
    script = textwrap.dedent(
        """
        import json, os, sys
        from pathlib import Path
        import torch
        from cuda_agent.candidate.loading import install_build_shims
        built, asked = Path(sys.argv[1]), Path(sys.argv[2])
        def request(message):
            asked.write_text(json.dumps(message))
            if not built.exists():
                sys.exit(3)
            return built
        install_build_shims(request)
        from torch.utils.cpp_extension import load_inline
        module = load_inline("doubler", "torch::Tensor twice(torch::Tensor x) { return x + x; }", functions=["twice"],
                             extra_cflags=["-O0"], verbose=True)
        assert module.__name__ == "doubler"
        assert module.twice(torch.ones(2)).tolist() == [2, 2]
        """
    )
    built, asked = tmp_path / "doubler.so", tmp_path / "asked.json"
    command = [sys.executable, "-c", script, str(built), str(asked)]
    assert subprocess.run(command, cwd=tmp_path).returncode == 3
    with Builder(tmp_path / "store") as builder:
        (result,) = builder.build([extension_unit(json.loads(asked.read_text()), Toolchain.detect("cpu"))], 200)
    assert result.path is not None, result.log
    shutil.copyfile(result.path, built)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_inline_sources_have_headers_and_a_module() -> None:
    files = inline_sources(["int f();", "int g();"], "__global__ void k() {}", {"f": "says f"})
    assert files["main.cpp"].startswith("#include <torch/extension.h>\nint f();\nint g();\nPYBIND11_MODULE(")
    assert 'm.def("f", torch::wrap_pybind_function(f), "says f");' in files["main.cpp"]
    assert files["cuda.cu"].startswith("#include <torch/types.h>\n#include <cuda.h>\n#include <cuda_runtime.h>\n")
    assert set(inline_sources("", None, None)) == {"main.cpp"}


def test_common_flags_are_understood() -> None:
    message = request(
        files={"main.cpp": "", "cuda.cu": ""},
        sources=["main.cpp", "cuda.cu"],
        cflags=["-O3", "-std=c++17", "-march=native", "-fopenmp"],
        cuda_cflags=["-O3", "--use_fast_math", "-Xcompiler", "-fopenmp", "-gencode", "arch=compute_90a,code=sm_90a",
                     "-gencode=arch=compute_80,code=sm_80"],
        ldflags=["-lcublas"],
    )  # fmt: skip
    text = ninja(extension_unit(message, HOPPER))
    assert "-arch=sm_90a" in text and "sm_80" not in text and "c++17" not in text
    assert "--use_fast_math" in text and "-Xcompiler=-fopenmp" in text and "-lcublas" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cflags": ["-fplugin=evil.so"]}, "-fplugin=evil.so"),
        ({"cflags": ["-I/etc"]}, "-I/etc"),
        ({"cflags": ["-O2;touch x"]}, "-O2;touch"),
        ({"cflags": ["-DX=$(id)"]}, "-DX="),
        ({"ldflags": ["-Wl,-rpath,/x"]}, "-Wl"),
        ({"include": ["../other"]}, "not a path inside"),
        ({"include": ["a b"]}, "letters, digits"),
        ({"files": {"/etc/x.cpp": ""}, "sources": ["/etc/x.cpp"]}, "not a path inside"),
        ({"sources": ["other.cpp"]}, "not among"),
        ({"name": "a b"}, "name"),
        ({"argv": ["sh"]}, "argv"),
        ({"with_cuda": True}, "the device here is the CPU"),
    ],
)
def test_what_a_runner_must_not_ask_for(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(CandidateError, match=said):
        extension_unit(request(**changes), CPU)


def test_the_published_workdir_is_one_module() -> None:
    files = {
        "model_new.py": b"",
        "binding.cpp": b"PYBIND11_MODULE(cuda_extension, m) {}",
        "binding_registry.h": b"#pragma once",
        "kernels/axpby.cu": b"",
        "kernels/axpby_binding.cpp": b"",
    }
    (unit,) = plan(Candidate(files, "workdir"), "cuda", HOPPER)
    assert unit.name == "cuda_extension" and unit.installed == "cuda_extension.so"
    assert ": device kernels/axpby.cu" in ninja(unit) and ": host kernels/axpby_binding.cpp" in ninja(unit)
    assert set(unit.files) == {*files, "build.ninja"} - {"model_new.py"}
    (unit,) = plan(Candidate(files, "workdir"), "cpu", CPU)
    assert "axpby.cu" not in ninja(unit)


def test_a_single_file_has_nothing_to_build_beforehand() -> None:
    assert plan(Candidate({"model_new.py": b""}, "single"), "cpu", CPU) == []
