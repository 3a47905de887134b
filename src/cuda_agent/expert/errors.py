"""What the expert refuses."""

from __future__ import annotations

from cuda_agent.errors import CudaAgentError


class Unsupported(CudaAgentError):
    """The built-in expert cannot write kernels for this model.

    operator: ATen or plain name of what it cannot do. line: its line in model.py, None if unknown.
    """

    def __init__(self, operator: str, line: int | None = None, why: str = "") -> None:
        self.operator, self.line, self.why = operator, line, why
        where = f" (model.py line {line})" if line else ""
        super().__init__(f"the built-in expert has no kernel for {operator}{where}{': ' + why if why else ''}")
