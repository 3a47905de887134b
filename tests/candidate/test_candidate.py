from __future__ import annotations

from pathlib import Path

import pytest

from cuda_agent.candidate import Candidate, load_candidate
from cuda_agent.candidate.candidate import check_path
from cuda_agent.errors import CandidateError


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_a_file_is_a_single(tmp_path: Path) -> None:
    write(tmp_path, {"fast.py": "class ModelNew: pass"})
    assert load_candidate(tmp_path / "fast.py") == Candidate({"model_new.py": b"class ModelNew: pass"}, "single")


@pytest.mark.parametrize(
    ("extra", "form"),
    [
        ({}, "single"),
        ({"kernels/a.cpp": 'extern "C" void f() {}'}, "launchers"),
        ({"binding.cpp": "", "kernels/a.cu": 'extern "C" void f() {}'}, "workdir"),
        ({"binding_registry.h": ""}, "workdir"),
    ],
)
def test_the_layout_decides_the_form(tmp_path: Path, extra: dict[str, str], form: str) -> None:
    assert load_candidate(write(tmp_path, {"model_new.py": "", **extra})).form == form


def test_builds_hidden_files_and_links_are_left_out(tmp_path: Path) -> None:
    secret = write(tmp_path / "elsewhere", {"secret.h": "no"}) / "secret.h"
    root = write(tmp_path / "candidate", {"model_new.py": "", ".env": "", "build/x.cpp": "", ".git/x": "", "a.so": ""})
    write(root, {"kernels/.build/a.so": "", "__pycache__/a.pyc": ""})
    (root / "link.h").symlink_to(secret)
    (root / "folder").symlink_to(secret.parent)
    assert set(load_candidate(root).files) == {"model_new.py"}


def test_unusable_paths_are_refused(tmp_path: Path) -> None:
    for files, said in [
        ({"notes.md": ""}, r"has no model_new.py \(it holds notes.md\)"),
        ({"model_new.py": "", "kernels/a.cu": "int x;"}, "kernels/a.cu has no function after"),
    ]:
        root = write(tmp_path / said[:5], files)
        with pytest.raises(CandidateError, match=said):
            load_candidate(root)
    with pytest.raises(CandidateError, match="does not exist"):
        load_candidate(tmp_path / "nowhere")
    with pytest.raises(CandidateError, match="not a Python file"):
        load_candidate(write(tmp_path, {"a.txt": ""}) / "a.txt")


def test_a_folder_too_large_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"model_new.py": ""})
    with (tmp_path / "weights.bin").open("wb") as stream:
        stream.truncate(17 << 20)
    with pytest.raises(CandidateError, match=r"more than 16 MiB .* weights.bin"):
        load_candidate(tmp_path)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "", "a/../../b", "a\\b", "a\nb", "-o.cpp", "./a", "a//b"])
def test_paths_stay_inside(path: str) -> None:
    with pytest.raises(CandidateError):
        check_path(path)
