"""The task record, and where tasks are found: files, folders, rows of JSONL."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cuda_agent.errors import TaskError
from cuda_agent.task.check import REQUIRED, check_source, listed, missing_packages

_EXTRAS = {"einops": "kernelbench", "transformers": "kernelbench"}
_LATER = {".parquet": "Parquet files", ".arrow": "Arrow files"}


@dataclass(frozen=True)
class Task:
    """name: short, file-system safe. source: the whole module. origin: where it came from, for messages."""

    name: str
    source: str
    origin: str

    @cached_property
    def key(self) -> str:
        """Content hash of the source alone: the same source is the same task wherever it lies."""
        return hashlib.sha256(self.source.encode()).hexdigest()


def load_task(ref: str | Path) -> Task:
    """Read one task and check it statically.

    ref: a `.py` file; a folder with `model.py`, or with a single task file in it; or one row of a JSONL file as
    `FILE.jsonl#ROW` (the 1-based line), `FILE.jsonl#LEVEL/PROBLEM_ID` or `FILE.jsonl#NAME`.

    Raises TaskError, in one sentence with file and line, when there is no such task, when its syntax is wrong, when
    `Model`, `get_inputs` or `get_init_inputs` is missing, or when it imports a package that is not installed.
    """
    task = _locate(str(ref))
    check_packages(task)
    return task


def load_tasks(ref: str | Path) -> list[Task]:
    """Read all tasks of a folder (its task files, and its sub-folders with a `model.py`) or of a JSONL file.

    The rows of a JSONL file are objects with `code`, and optionally `level`, `problem_id` and `name`. Files of a
    folder that define none of the three names are passed over. Raises TaskError like `load_task`, except that missing
    packages are not an error here (one row that needs einops should not hide the rest): `check_packages` tells.
    """
    text = str(ref)
    path = Path(text)
    if path.is_dir():
        tasks = [_from_file(file) for file in _task_files(path)]
        if not tasks:
            raise TaskError(f"{text}: no task in this folder; a task is a .py file with {listed(REQUIRED)}.")
        return tasks
    if path.suffix == ".jsonl" and path.is_file():
        tasks = [_from_row(row, path, number) for number, row in _rows(path)]
        if not tasks:
            raise TaskError(f"{text}: this file has no rows.")
        return tasks
    return [_locate(text)]


def check_packages(task: Task) -> None:
    """Raise TaskError that names the first package missing here and the command that installs it."""
    for package, line in missing_packages(task.source):
        where = f"{task.origin}:{line}"
        if (Path(task.origin).parent / f"{package}.py").is_file():
            raise TaskError(
                f"{where}: imports `{package}` from the file beside it, but a task is one file; paste it in."
            )
        extra = f" (it is in the extra `{_EXTRAS[package]}` of cuda-agent)" if package in _EXTRAS else ""
        raise TaskError(
            f"{where}: imports `{package}`, which is not installed here; run `pip install {package}`{extra}."
        )


def _locate(ref: str) -> Task:
    path = Path(ref)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        if path.suffix == ".jsonl":
            raise TaskError(
                f"{ref}: holds many tasks; name one as `{ref}#ROW`, `{ref}#LEVEL/PROBLEM_ID` or `{ref}#NAME`."
            )
        if path.suffix in _LATER:
            raise TaskError(
                f"{ref}: {_LATER[path.suffix]} are not read yet; export the rows to JSONL with a `code` field."
            )
        return _from_file(path)
    file, hash_sign, selector = ref.rpartition("#")
    if hash_sign and file.endswith(".jsonl"):
        return _select(Path(file), selector)
    if "://" in ref or (re.fullmatch(r"[\w.-]+/[\w.-]+", ref) and not path.parent.exists() and not path.suffix):
        raise TaskError(f"{ref}: no such file, and Hub data sets are not read yet; download its rows as JSONL first.")
    raise TaskError(f"{ref}: no such file or folder.")


def _from_folder(folder: Path) -> Task:
    if (folder / "model.py").is_file():
        return _from_file(folder / "model.py")
    files = _task_files(folder)
    if len(files) == 1:
        return _from_file(files[0])
    if not files:
        raise TaskError(
            f"{folder}: has no model.py and no other task file; a task is a .py file with {listed(REQUIRED)}."
        )
    names = ", ".join(file.name for file in files[:3]) + (", …" if len(files) > 3 else "")
    raise TaskError(f"{folder}: has {len(files)} tasks ({names}); name one of them.")


def _task_files(folder: Path) -> list[Path]:
    """The folder's task files in natural order; a folder with a model.py is one task."""
    if (folder / "model.py").is_file():
        return [folder / "model.py"]
    found = [file for file in folder.glob("*.py") if file.is_file() and _looks_like_task(file)]
    found += [child / "model.py" for child in folder.iterdir() if (child / "model.py").is_file()]
    return sorted(
        found, key=lambda file: [(int(p), "") if p.isdecimal() else (-1, p) for p in re.split(r"(\d+)", str(file))]
    )


def _looks_like_task(file: Path) -> bool:
    """A file that says any of the three names is meant as a task, even if it does not parse."""
    source = _read(file)
    return any(re.search(rf"^\s*(?:class|def)\s+{name}\b", source, re.MULTILINE) for name in REQUIRED)


def _from_file(file: Path) -> Task:
    source = _read(file)
    check_source(source, str(file))
    name = file.resolve().parent.name if file.name == "model.py" else file.stem
    return Task(_safe_name(name), source, str(file))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskError(f"{file}: not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise TaskError(f"{file}: cannot be read: {error.strerror}.") from None


def _select(file: Path, selector: str) -> Task:
    if not file.is_file():
        raise TaskError(f"{file}: no such file.")
    level, slash, problem = selector.partition("/")
    for number, row in _rows(file):
        if selector.isdigit():
            chosen = number == int(selector)
        elif slash and level.isdigit() and problem.isdigit():
            chosen = (row.get("level"), row.get("problem_id")) == (int(level), int(problem))
        else:
            chosen = row.get("name") == selector
        if chosen:
            return _from_row(row, file, number)
    raise TaskError(
        f"{file}: no row `{selector}`; name one by its line (1-based), by level/problem_id, or by its name."
    )


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(_read(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskError(f"{file}:{number}: not JSON ({error.msg}, column {error.colno}).") from None
        if not isinstance(row, dict) or not isinstance(row.get("code"), str):
            raise TaskError(f"{file}:{number}: a row must be an object with the task's source in `code`.")
        yield number, row


def _from_row(row: dict[str, Any], file: Path, number: int) -> Task:
    origin = f"{file}#{number}"
    check_source(row["code"], origin)
    name = row.get("name")
    if not isinstance(name, str) or not name:
        ids = [str(row[field]) for field in ("level", "problem_id") if field in row]
        name = "_".join(["level", *ids]) if len(ids) == 2 else f"{file.stem}_{number}"
    return Task(_safe_name(name), row["code"], origin)


def _safe_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80].lstrip("._-") or "task"
