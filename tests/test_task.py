"""Tasks are read and checked as text; what is wrong is one sentence with file and line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_agent.errors import TaskError
from cuda_agent.task import Task, check_packages, check_source, load_task, load_tasks

GOOD = """\
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return x + 1

def get_inputs():
    return [torch.randn(4)]

def get_init_inputs():
    return []
"""


def write(path: Path, source: str = GOOD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def refuse(ref: str | Path) -> str:
    with pytest.raises(TaskError) as caught:
        load_task(ref)
    message = str(caught.value)
    assert "\n" not in message
    return message


class TestWhereTasksAreFound:
    def test_a_file_is_named_after_itself(self, tmp_path: Path) -> None:
        task = load_task(write(tmp_path / "my task.py"))
        assert (task.name, task.source, task.origin) == ("my_task", GOOD, str(tmp_path / "my task.py"))

    def test_a_folder_with_model_py_is_named_after_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path / "norm" / "model.py")
        write(tmp_path / "norm" / "other.py")
        assert load_task(tmp_path / "norm").name == "norm"

    def test_a_folder_with_a_single_task_beside_other_files(self, tmp_path: Path) -> None:
        write(tmp_path / "one.py")
        write(tmp_path / "helper.py", "x = 1\n")
        assert load_task(tmp_path).name == "one"

    def test_a_folder_with_two_tasks_is_ambiguous(self, tmp_path: Path) -> None:
        write(tmp_path / "one.py")
        write(tmp_path / "two.py")
        assert "has 2 tasks (one.py, two.py)" in refuse(tmp_path)

    def test_all_tasks_of_a_folder_in_natural_order(self, tmp_path: Path) -> None:
        for name in ("10_b.py", "2_a.py", "3/model.py"):
            write(tmp_path / name)
        assert [task.name for task in load_tasks(tmp_path)] == ["2_a", "3", "10_b"]

    def test_a_byte_order_mark_is_no_part_of_the_source(self, tmp_path: Path) -> None:
        (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
        assert load_task(tmp_path / "bom.py").source == GOOD

    @pytest.mark.parametrize("ref", ["missing.py", "missing_folder/", "a.jsonl#1"])
    def test_nothing_there(self, ref: str) -> None:
        assert "no such file" in refuse(ref)

    def test_formats_that_come_later_are_said_to(self, tmp_path: Path) -> None:
        (tmp_path / "rows.parquet").write_bytes(b"PAR1")
        assert "Parquet files are not read yet" in refuse(tmp_path / "rows.parquet")
        assert "Hub data sets are not read yet" in refuse("ScalingIntelligence/KernelBench")


class TestRowsOfJsonl:
    @pytest.fixture
    def rows(self, tmp_path: Path) -> Path:
        path = tmp_path / "rows.jsonl"
        lines = [
            {"level": 1, "problem_id": 7, "name": "7_first", "code": GOOD},
            {"level": 2, "problem_id": 7, "code": GOOD + "# two\n"},
            {"code": GOOD + "# three\n"},
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def test_by_line_by_name_and_by_level_and_problem(self, rows: Path) -> None:
        assert load_task(f"{rows}#1").name == load_task(f"{rows}#7_first").name == load_task(f"{rows}#1/7").name
        assert load_task(f"{rows}#2/7").source.endswith("# two\n")
        assert load_task(f"{rows}#3").origin == f"{rows}#3"

    def test_rows_without_a_name_are_named_by_where_they_are(self, rows: Path) -> None:
        assert [task.name for task in load_tasks(rows)] == ["7_first", "level_2_7", "rows_3"]

    def test_no_such_row_and_no_row_named(self, rows: Path) -> None:
        assert "no row `9`" in refuse(f"{rows}#9")
        assert "#ROW" in refuse(rows)

    @pytest.mark.parametrize("line", ["{", "[]", '{"name": "x"}', '{"code": 1}'])
    def test_a_broken_row_is_named_by_its_line(self, tmp_path: Path, line: str) -> None:
        path = tmp_path / "broken.jsonl"
        path.write_text(json.dumps({"code": GOOD}) + f"\n{line}\n")
        with pytest.raises(TaskError, match=r"broken\.jsonl:2: "):
            load_tasks(path)

    def test_one_row_with_a_missing_package_does_not_hide_the_rest(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text(json.dumps({"code": "import no_such_pkg\n" + GOOD}) + "\n")
        (task,) = load_tasks(path)
        with pytest.raises(TaskError, match=r"rows\.jsonl#1:1: imports `no_such_pkg`"):
            check_packages(task)
        assert "no_such_pkg" in refuse(f"{path}#1")

    @pytest.mark.skipif(
        "CUDA_AGENT_KERNELBENCH" not in os.environ, reason="set CUDA_AGENT_KERNELBENCH to its JSONL file"
    )
    def test_all_of_kernelbench_parses(self) -> None:
        tasks = load_tasks(os.environ["CUDA_AGENT_KERNELBENCH"])
        assert len(tasks) == len({task.name for task in tasks}) == 270


class TestWhatATaskMustHave:
    def test_a_syntax_error_has_its_line(self, tmp_path: Path) -> None:
        path = write(tmp_path / "bad.py", "import torch\nclass Model(:\n")
        assert refuse(path).startswith(f"{path}:2: syntax error")

    @pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
    def test_a_missing_name_is_named_with_what_to_add(self, tmp_path: Path, name: str) -> None:
        path = write(tmp_path / "bad.py", GOOD.replace(f" {name}(", f" Renamed{name}("))
        message = refuse(path)
        assert message.startswith(f"{path}: `{name}` missing; add ")

    def test_a_candidate_is_told_from_a_task(self, tmp_path: Path) -> None:
        path = write(tmp_path / "model_new.py", "import torch\nclass ModelNew(torch.nn.Module): ...\n")
        assert "this is a candidate" in refuse(path)

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ("def forward", "def forwards", "has no `forward`"),
            ("class Model(nn.Module)", "class Model", "must derive from torch.nn.Module"),
            ("class Model(nn.Module)", "def Model()", "is a function"),
            ("def get_inputs()", "def get_inputs(n)", "called without arguments"),
            ("return []", "pass", "returns nothing"),
            ("import torch\n", "import torch\nfrom . import x\n", ":2: relative import"),
        ],
    )
    def test_what_could_never_work(self, tmp_path: Path, old: str, new: str, says: str) -> None:
        path = write(tmp_path / "bad.py", GOOD.replace(old, new, 1))
        message = refuse(path)
        assert says in message
        assert str(path) in message

    def test_names_may_be_bound_in_any_way(self) -> None:
        check_source("from torch.nn import Identity as Model\nget_inputs = get_init_inputs = lambda: []\n", "x")
        check_source("if True:\n" + "".join(f"    {line}\n" for line in GOOD.splitlines()), "x")

    def test_nothing_is_executed(self, tmp_path: Path) -> None:
        trap = tmp_path / "trap"
        write(tmp_path / "task.py", GOOD + f"open({str(trap)!r}, 'w').close()\n")
        load_task(tmp_path / "task.py")
        assert not trap.exists()

    @given(st.text())
    def test_any_text_is_read_or_refused_in_one_line(self, source: str) -> None:
        try:
            check_source(source, "any.py")
        except TaskError as error:
            assert str(error).startswith("any.py")


class TestPackages:
    def test_a_missing_package_is_named_with_the_command(self, tmp_path: Path) -> None:
        path = write(tmp_path / "t.py", GOOD + "from no_such_pkg.sub import x\n")
        line = GOOD.count("\n") + 1
        assert refuse(path) == (
            f"{path}:{line}: imports `no_such_pkg`, which is not installed here; run `pip install no_such_pkg`."
        )

    def test_the_extra_that_has_it_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cuda_agent.task.check._installed", lambda package: package != "einops")
        with pytest.raises(TaskError, match="extra `kernelbench`"):
            check_packages(Task("t", "import einops\n" + GOOD, "t.py"))

    def test_guarded_imports_may_fail(self, tmp_path: Path) -> None:
        guarded = "try:\n    import no_such_pkg\nexcept ImportError:\n    no_such_pkg = None\n"
        typing_only = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import no_such_pkg\n"
        load_task(write(tmp_path / "a.py", guarded + GOOD))
        load_task(write(tmp_path / "b.py", typing_only + GOOD))

    def test_a_file_beside_it_is_no_package(self, tmp_path: Path) -> None:
        write(tmp_path / "layers.py", "x = 1\n")
        assert "a task is one file" in refuse(write(tmp_path / "t.py", "import layers\n" + GOOD))


def test_the_key_is_the_source_alone() -> None:
    assert Task("a", GOOD, "here").key == Task("b", GOOD, "there").key != Task("a", GOOD + "\n", "here").key
