from __future__ import annotations

import shutil
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cuda_agent.candidate import BuildUnit, Candidate, Toolchain, plan
from cuda_agent.judge.builder import Builder, Built

SOURCE = b'extern "C" int value() { return VALUE; }'


def unit(source: bytes, schedule: bytes = b'{"k": {"VALUE": 3}}', headers: dict[str, bytes] | None = None) -> BuildUnit:
    files = {"kernels/k.cpp": source, "kernels/schedule.json": schedule, **(headers or {})}
    (only,) = plan(Candidate(files, "launchers"), "cpu", Toolchain.detect("cpu"))
    return only


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    with Builder(tmp_path / "store", jobs=2) as made:
        yield made


def build(builder: Builder, unit: BuildUnit, timeout_s: float = 60.0) -> Built:
    (built,) = builder.build([unit], timeout_s)
    return built


def test_an_object_is_built_once_and_is_read_only(builder: Builder) -> None:
    first, second = build(builder, unit(SOURCE)), build(builder, unit(SOURCE))
    assert first.path is not None and first.path == second.path
    assert (first.cached, second.cached) == (False, True)
    assert first.path.is_relative_to(builder.store)
    assert not first.path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    assert first.path.read_bytes().startswith(b"\x7fELF")


def test_nothing_is_left_beside_the_store(builder: Builder) -> None:
    build(builder, unit(SOURCE))
    build(builder, unit(b"nonsense;" + SOURCE))
    assert list((builder.store / "building").iterdir()) == []


def test_a_compile_error_is_remembered_with_its_log(builder: Builder) -> None:
    broken = unit(b'extern "C" int value() { return undeclared; }')
    first, second = build(builder, broken), build(builder, broken)
    assert first.failure == second.failure == "failed" and first.path is None
    assert "kernels/k.cpp:1" in second.log and "undeclared" in second.log
    assert second.cached


def test_macros_headers_and_sources_decide_the_key() -> None:
    units = [
        unit(SOURCE),
        unit(SOURCE + b"\n"),
        unit(SOURCE, schedule=b'{"k": {"VALUE": 4}}'),
        unit(SOURCE, headers={"kernels/a.h": b""}),
        unit(b"// cuda-agent: flags=-ffast-math\n" + SOURCE),
    ]
    assert len({one.key for one in units}) == len({one.output for one in units}) == len(units)
    assert unit(SOURCE).key == unit(SOURCE, schedule=b'{"k": {"VALUE": 3}, "other": {"X": 1}}').key


def test_another_compiler_is_another_key() -> None:
    files = {"kernels/k.cpp": SOURCE}
    keys = {
        plan(Candidate(files, "launchers"), "cpu", Toolchain("cpu", "/usr/bin/g++", version))[0].key
        for version in ("g++ 12", "g++ 13")
    }
    assert len(keys) == 2


def test_a_time_out_is_not_remembered(builder: Builder) -> None:
    # Two to the power of N instantiations, none of which may be shared.
    endless = unit(
        b"template <long A, int N> struct S { static constexpr long v = S<2*A, N-1>::v + S<2*A + 1, N-1>::v; };\n"
        b"template <long A> struct S<A, 0> { static constexpr long v = A; };\n"
        b'extern "C" int value() { return (int)S<1, 40>::v; }'
    )
    for _ in range(2):
        built = build(builder, endless, timeout_s=1.5)
        assert built.failure in ("timed_out", "memory") and built.path is None and not built.cached
    assert build(builder, unit(SOURCE)).failure is None


def test_an_endless_include_is_bounded(tmp_path: Path) -> None:
    with Builder(tmp_path / "store", memory_bytes=1 << 30) as builder:
        built = build(builder, unit(b'#include "/dev/zero"\n' + SOURCE), timeout_s=20)
    assert built.failure in ("timed_out", "memory", "failed") and built.path is None


def test_hidden_files_cannot_be_included(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key.h").write_text('#error "the secret"\n')
    with Builder(tmp_path / "store", hidden=(secret,)) as builder:
        built = build(builder, unit(f'#include "{secret}/key.h"\n'.encode() + SOURCE))
    assert built.failure == "failed" and "the secret" not in built.log


def test_many_askers_build_once(tmp_path: Path) -> None:
    wanted = unit(SOURCE)
    with Builder(tmp_path / "store") as one, Builder(tmp_path / "store") as other, ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda builder: build(builder, wanted), [one, other, one, other]))
    assert sorted(result.cached for result in built) == [False, True, True, True]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_cuda_launchers_compile_for_hopper_with_a_resource_report(builder: Builder) -> None:
    source = b"""// cuda-agent: flags=--use_fast_math arch=sm_90a
        #include <cstdint>
        __global__ void scale_kernel(const float* x, float* out, int64_t n) {
            __shared__ float tile[BLOCK];
            int64_t i = blockIdx.x * (int64_t)BLOCK + threadIdx.x;
            tile[threadIdx.x] = i < n ? x[i] : 0;
            __syncthreads();
            if (i < n) out[i] = tile[BLOCK - 1 - threadIdx.x];
        }
        extern "C" void scale(const float* x, float* out, int64_t n, cudaStream_t stream) {
            scale_kernel<<<(n + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(x, out, n);
        }"""
    files = {"kernels/scale.cu": source, "kernels/schedule.json": b'{"scale": {"BLOCK": 128}}'}
    units = plan(Candidate(files, "launchers"), "cuda", Toolchain.detect("cuda", arch="sm_90"))
    built = build(builder, units[0], timeout_s=120)
    assert built.failure is None, built.log
    (kernel,) = built.report
    assert "scale_kernel" in kernel.kernel and kernel.shared_bytes == 512
    assert kernel.registers > 0 and kernel.spill_store_bytes == kernel.spill_load_bytes == 0
    assert "-arch=sm_90a" in units[0].argv
