"""Set-up on machines that lack something: one sentence with the command that mends it. And what importing costs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
SETUP = ROOT / "scripts" / "setup.py"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("cuda_agent_setup", SETUP)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Machine:
    """A PATH with nothing but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.venv = folder / "venv"
        self.shadow = folder / "shadow"
        self.shadow.mkdir()
        self.python()

    def link(self, name: str, target: str) -> None:
        (self.bin / name).symlink_to(target)

    def compiler(self) -> None:
        self.link("g++", "/bin/true")

    def python(self) -> None:
        """A python3 that is the one of these tests, save for modules in `shadow`."""
        script = self.bin / "python3"
        script.write_text(f'#!/bin/sh\nPYTHONPATH={self.shadow} exec {sys.executable} "$@"\n')
        script.chmod(0o755)

    def setup(self, *arguments: str, **environment: str) -> tuple[int, str]:
        env = {"PATH": str(self.bin), "CUDA_AGENT_VENV": str(self.venv), "HOME": str(self.bin)}
        env |= {"CUDA_AGENT_PYTHON": str(self.bin / "python3"), **environment}
        done = subprocess.run([sys.executable, SETUP, *arguments], env=env, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def one_sentence(stderr: str) -> str:
    assert stderr.startswith("setup: ")
    assert stderr.count("\n") == 1
    assert "Traceback" not in stderr
    return stderr


class TestWhatTheSystemLacks:
    def test_nothing(self, machine: Machine) -> None:
        machine.compiler()
        assert machine.setup("--check") == (0, "")

    def test_a_compiler(self, machine: Machine) -> None:
        code, stderr = machine.setup("--check")
        assert code == 1
        assert "no C++ compiler" in one_sentence(stderr)

    def test_the_command_is_that_of_the_distribution(self, machine: Machine) -> None:
        machine.link("apt-get", "/bin/true")
        sudo = "" if os.geteuid() == 0 else "sudo "
        assert f"`{sudo}apt install g++`" in machine.setup("--check")[1]

    def test_python_headers(self, machine: Machine) -> None:
        machine.compiler()
        machine.link("dnf", "/bin/true")
        (machine.shadow / "sitecustomize.py").write_text(
            "import sysconfig\nsysconfig.get_path = lambda name: '/nowhere'\n"
        )
        code, stderr = machine.setup("--check")
        assert code == 1
        assert "Python.h" in one_sentence(stderr)
        assert f"dnf install python{sys.version_info[0]}.{sys.version_info[1]}-devel" in stderr

    def test_the_venv_module(self, machine: Machine) -> None:
        machine.compiler()
        machine.link("apt-get", "/bin/true")
        for name in ("ensurepip", "torch"):
            (machine.shadow / f"{name}.py").write_text("raise ImportError\n")
        code, stderr = machine.setup()
        assert code == 1
        assert "venv module is missing" in stderr.splitlines()[-1]
        assert f"apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv" in stderr
        assert not machine.venv.exists()

    def test_a_python_that_is_new_enough(self, machine: Machine) -> None:
        old = machine.bin / "old"
        old.write_text("#!/bin/sh\necho 3 9 1 1\n")
        old.chmod(0o755)
        code, stderr = machine.setup("--check", CUDA_AGENT_PYTHON=str(old))
        assert code == 1
        assert "is Python 3.9; 3.11 or 3.12 is needed" in one_sentence(stderr)

    def test_a_shim_without_a_python_behind_it_is_passed_over(self, setup: ModuleType) -> None:
        assert setup.system.interpreters(["false", "no-such-python"]) == []

    def test_a_wrong_choice_of_torch(self, machine: Machine) -> None:
        machine.compiler()
        assert "it is `cpu` or `cuda`" in one_sentence(machine.setup("--check", CUDA_AGENT_TORCH="rocm")[1])

    @pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
    def test_python_itself(self, tmp_path: Path) -> None:
        (tmp_path / "sh").symlink_to("/bin/sh")
        env = {"PATH": str(tmp_path), "SHELL": "/bin/sh"}
        done = subprocess.run(
            [str(shutil.which("make")), "setup", f"VENV={tmp_path}/venv"],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert "python3 is missing" in done.stderr


class TestWhichTorch:
    """What pip would install is known before it is downloaded."""

    @pytest.mark.parametrize(
        ("version", "requires", "flavour"),
        [
            ("2.13.0+cpu", ["filelock", "sympy"], "cpu"),
            ("2.13.0", ["filelock", "sympy"], "cpu"),  # PyPI's wheels for aarch64
            ("2.13.0", ['nvidia-cudnn-cu13==9.15; platform_system == "Linux"'], "cu130"),
            ("2.13.0", ['cuda-toolkit[cublas]==13.0.2; platform_system == "Linux"'], "cu130"),
            ("2.11.0+cu130", [], "cu130"),
            ("2.9.0", ['nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"'], "cuda"),
            ("2.9.0+rocm6.4", [], "cuda"),
        ],
    )
    def test_the_flavour_of_a_build(self, setup: ModuleType, version: str, requires: list[str], flavour: str) -> None:
        report = {
            "install": [
                {
                    "metadata": {"name": "torch", "version": version, "requires_dist": requires},
                    "download_info": {"url": "https://example.org/torch.whl"},
                }
            ]
        }
        assert setup.read_report(report) == (version, "https://example.org/torch.whl", flavour)

    def test_a_cuda_build_is_never_taken_for_want_of_a_cpu_build(
        self, setup: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(setup, "resolve", lambda requirement, options: setup.Build("2.13.0", "u", "cu130"))
        with pytest.raises(setup.Stop, match=r"only torch 2\.13\.0 .*`CUDA_AGENT_TORCH=cuda make"):
            setup.find_torch("cpu")
        assert setup.find_torch("cuda").flavour == "cu130"

    def test_the_cpu_index_is_asked_when_pip_is_configured_for_cuda_only(
        self, setup: ModuleType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def resolve(requirement: str, options: list[str]) -> object:
            at_cpu_index = setup.CPU_INDEX in options
            return setup.Build("2.13.0+cpu" if at_cpu_index else "2.13.0", "u", "cpu" if at_cpu_index else "cu130")

        monkeypatch.setattr(setup, "resolve", resolve)
        assert setup.find_torch("cpu").version == "2.13.0+cpu"

    def test_nothing_at_all(self, setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup, "resolve", lambda requirement, options: None)
        with pytest.raises(setup.Stop, match="check the network"):
            setup.find_torch("cpu")


def test_set_up_does_nothing_when_it_is_done(machine: Machine, setup: ModuleType) -> None:
    (machine.venv / "bin").mkdir(parents=True)
    (machine.venv / "bin" / "python").touch()
    (machine.venv / ".cuda-agent-setup").write_text(setup._fingerprint())
    assert machine.setup() == (0, "")


class TestImports:
    def loaded(self, code: str) -> str:
        script = f"import sys\n{code}\nprint('torch' in sys.modules)"
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    @pytest.mark.parametrize(
        "code",
        [
            "import cuda_agent; cuda_agent.load_task",
            "import cuda_agent.cli.app, cuda_agent.cli.commands",
            "import cuda_agent.task, cuda_agent.candidate, cuda_agent.judge",
            "from cuda_agent.cli.boundary import run; run(['--help'])",
        ],
    )
    def test_torch_is_not_loaded(self, code: str) -> None:
        assert self.loaded(code).splitlines()[-1] == "False"

    @pytest.mark.parametrize("first", ["cuda_agent", "cuda_agent.judge", "cuda_agent.optimize", "cuda_agent.api"])
    def test_rooms_and_functions_of_one_name_do_not_hide_each_other(self, first: str) -> None:
        code = (
            f"import {first}, cuda_agent\n"
            "for _ in range(2):\n"
            "    assert callable(cuda_agent.judge) and callable(cuda_agent.optimize)\n"
            "    from cuda_agent.judge import Settings\n"
            "    import cuda_agent.judge.verdict as verdict\n"
            "    from cuda_agent import judge\n"
            "    assert judge.Settings is Settings and verdict.Verdict\n"
            "try:\n"
            "    cuda_agent.judge('/no/such/task.py', 'x')\n"
            "except cuda_agent.errors.TaskError:\n"
            "    pass"
        )
        self.loaded(code)

    def test_an_unknown_name(self) -> None:
        import cuda_agent

        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            cuda_agent.nothing  # noqa: B018


def test_ci_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "make test"
