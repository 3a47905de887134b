"""Compilers: found, called with IEEE arithmetic, and a clear word where there is none."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import pytest

from cuda_agent.backends import cpu_toolchain, cuda_toolchain, get_backend, missing_python_headers, toolchain
from cuda_agent.errors import SetupError

SOURCE = """
#include <cmath>
extern "C" int is_nan(float x) { return std::isnan(x); }
extern "C" double total(const double* x, int n) {
    double s = SCALE - 1;
    #pragma omp parallel for reduction(+ : s)
    for (int i = 0; i < n; ++i) s += x[i];
    return s;
}
"""


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_builds_a_working_shared_object(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(SOURCE)
    command = get_backend("cpu").toolchain().command([tmp_path / "a.cpp"], tmp_path / "a.so", macros={"SCALE": 1})
    subprocess.run(command, check=True)
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    library.total.restype = ctypes.c_double
    assert library.total((ctypes.c_double * 4)(1, 2, 3, 4), 4) == 10
    assert library.is_nan(ctypes.c_float(math.nan)) == 1


def test_no_compiler_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(SetupError, match=r"no C\+\+ compiler: .*`sudo apt-get install g\+\+`"):
        cpu_toolchain()


def test_no_nvcc_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    which = shutil.which
    monkeypatch.setattr(toolchain.shutil, "which", lambda name, **kw: None if name == "nvcc" else which(name, **kw))
    with pytest.raises(SetupError, match=r"no CUDA compiler: .*apt-get install cuda-nvcc"):
        cuda_toolchain("sm_90")


def test_a_compiler_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "g++"
    broken.write_text("#!/bin/sh\necho broken install >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(SetupError, match=r"g\+\+ does not run \(broken install\)"):
        cpu_toolchain()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_nvcc_builds_and_reports_resources(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text('extern "C" __global__ void f(float* x) { x[threadIdx.x] *= FACTOR; }')
    tools = cuda_toolchain("sm_90")
    command = tools.report_command([tmp_path / "a.cu"], tmp_path / "a.so", {"FACTOR": 2})
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sm_90" in done.stderr and "registers" in done.stderr
    assert (tmp_path / "a.so").exists()


def test_key_depends_on_the_target() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    assert cuda_toolchain("sm_90").key != cuda_toolchain("sm_80").key
    assert cuda_toolchain("sm_90").key == cuda_toolchain("sm_90").key


def test_missing_python_headers_name_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain.sysconfig, "get_path", lambda name: str(tmp_path))
    message = missing_python_headers()
    assert message is not None and "sudo apt-get install python3" in message
