"""What is judged: the candidate's files, in one of three forms, and the launcher ABI."""

from cuda_agent.candidate.build_plan import BuildUnit, Toolchain, plan
from cuda_agent.candidate.candidate import Candidate, Form, load_candidate
from cuda_agent.candidate.ops import standalone, write_ops
from cuda_agent.candidate.prototypes import Launcher, Parameter, read_launchers

__all__ = [
    "BuildUnit",
    "Candidate",
    "Form",
    "Launcher",
    "Parameter",
    "Toolchain",
    "load_candidate",
    "plan",
    "read_launchers",
    "standalone",
    "write_ops",
]
