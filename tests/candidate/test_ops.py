from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cuda_agent.candidate import Candidate, standalone, write_ops
from cuda_agent.errors import CandidateError


def write(candidate: Candidate, folder: Path) -> Path:
    for path, content in standalone(candidate, "cpu").files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def load(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("ops_under_test", folder / "ops.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ops(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    from tests.candidate.conftest import RMSNORM

    files = {"kernels/rmsnorm.cpp": RMSNORM, "kernels/common.h": "inline float square(float x) { return x * x; }"}
    files["kernels/schedule.json"] = '{"rmsnorm": {"SCALE": 1}}'
    candidate = Candidate({path: text.encode() for path, text in files.items()}, "launchers")
    return load(write(candidate, tmp_path_factory.mktemp("ops")))


def test_the_folder_stands_alone(rmsnorm: Candidate, tmp_path: Path) -> None:
    write(rmsnorm, tmp_path)
    script = f"""
import sys
sys.path[:] = [path for path in sys.path if "cuda_agent" not in path and not path.endswith("/src")]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path.insert(0, {str(tmp_path)!r})
import torch
from model_new import ModelNew
x = torch.randn(33, 70)
expected = torch.nn.functional.rms_norm(x, (70,), eps=1e-5)
torch.testing.assert_close(ModelNew(70)(x).detach(), expected)
assert not any(name.startswith("cuda_agent") for name in sys.modules)
try:
    import cuda_agent
except ImportError:
    print("alone")
"""
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "alone"


def test_a_null_pointer_is_none_and_no_dimension_is_fine(ops: ModuleType) -> None:
    x, out = torch.tensor(3.0), torch.empty(())
    ops.rmsnorm(x, None, out, 1, 1, 0.0)
    assert out.item() == pytest.approx(1.0)


def test_wrong_tensors_are_named(ops: ModuleType) -> None:
    x, out = torch.randn(4, 6), torch.empty(4, 6)
    with pytest.raises(TypeError, match=r"x must be torch.float32, not torch.float64"):
        ops.rmsnorm(x.double(), None, out, 4, 6, 1e-5)
    with pytest.raises(ValueError, match=r"out must be contiguous: its shape is \(6, 4\)"):
        ops.rmsnorm(x, None, out.T, 4, 6, 1e-5)
    with pytest.raises(ValueError, match="weight must be on cpu, not on meta"):
        ops.rmsnorm(x, x.to("meta"), out, 4, 6, 1e-5)
    with pytest.raises(TypeError, match="out must be a tensor or None, not list"):
        ops.rmsnorm(x, None, [1.0], 4, 6, 1e-5)


def test_wrong_scalars_are_named(ops: ModuleType) -> None:
    x = torch.randn(4, 6)
    with pytest.raises(OverflowError, match=r"cols = 4294967296 does not fit int32_t"):
        ops.rmsnorm(x, None, x, 4, 1 << 32, 1e-5)
    with pytest.raises(TypeError, match="rows must be an integer, not float"):
        ops.rmsnorm(x, None, x, 4.0, 6, 1e-5)
    with pytest.raises(TypeError, match="eps must be a number, not Tensor"):
        ops.rmsnorm(x, None, x, 4, 6, torch.tensor(1e-5))
    with pytest.raises(OverflowError, match="small = -1 does not fit uint8_t"):
        ops.counts(torch.tensor([1]), torch.zeros(1, dtype=torch.int32), -1)


def test_integer_pointers_and_void(ops: ModuleType) -> None:
    out = torch.zeros(1, dtype=torch.int32)
    ops.counts(torch.tensor([40]), out, 2)
    assert out.item() == 42
    ops.takes_any(torch.zeros(2, dtype=torch.bfloat16), True, 1)


def test_a_status_other_than_zero_raises(ops: ModuleType) -> None:
    ops.fails(0)
    with pytest.raises(RuntimeError, match="fails returned 7"):
        ops.fails(7)


def test_compile_errors_are_shown(rmsnorm: Candidate, tmp_path: Path) -> None:
    broken = replace(rmsnorm, files={**rmsnorm.files, "kernels/rmsnorm.cpp": b'extern "C" void f() { oops; }'})
    with pytest.raises(RuntimeError, match=r"kernels/rmsnorm.cpp does not compile:[\s\S]*oops"):
        load(write(broken, tmp_path))


def test_an_edited_schedule_is_compiled_again(rmsnorm: Candidate, tmp_path: Path) -> None:
    write(rmsnorm, tmp_path)
    x, out = torch.ones(1, 4), torch.empty(1, 4)
    load(tmp_path).rmsnorm(x, None, out, 1, 4, 0.0)
    assert out[0, 0] == 1
    (tmp_path / "kernels/schedule.json").write_text('{"rmsnorm": {"SCALE": 5}}')
    load(tmp_path).rmsnorm(x, None, out, 1, 4, 0.0)
    assert out[0, 0] == 5
    assert len(list((tmp_path / "kernels/.build").glob("*.so"))) == 2


def test_cuda_functions_supply_stream_and_device() -> None:
    source = b'extern "C" void scale(const __half* x, __half* out, int64_t n, int status, cudaStream_t stream) {}'
    text = write_ops({"kernels/scale.cu": source}, "cuda")
    ast.parse(text)
    assert "tensor.is_cuda" in text and "tensor.is_cpu" not in text
    assert '_pointer(x, "x", torch.float16)' in text
    assert "_current_stream(device)" in text
    assert "def scale(x: Tensor | None, out: Tensor | None, n: int, status_: int) -> None:" in text


def test_ops_needs_nothing_of_ours(rmsnorm: Candidate) -> None:
    assert "cuda_agent." not in write_ops(rmsnorm.files, "cpu")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"kernels/a.cu": b""}, r"no kernels/\*.cpp for device cpu; kernels/ holds kernels/a.cu"),
        ({"kernels/a.cpp": b"int x;"}, "kernels/a.cpp defines no launcher"),
        ({"kernels/a.cpp": b'extern "C" void f() {}', "kernels/b.cpp": b'\nextern "C" void f() {}'},
         "kernels/b.cpp:2: f is also defined in kernels/a.cpp:1"),
        ({"kernels/a.cpp": b"\xff"}, "kernels/a.cpp is not UTF-8 text"),
        ({"kernels/a.cpp": b'extern "C" void load_sources() {}'}, "something else called load_sources"),
        ({"kernels/a.cpp": b'extern "C" void lambda() {}'}, "needs another name"),
    ],
)  # fmt: skip
def test_unusable_sources_are_refused(files: dict[str, bytes], said: str) -> None:
    with pytest.raises(CandidateError, match=said):
        write_ops(files, "cpu")
