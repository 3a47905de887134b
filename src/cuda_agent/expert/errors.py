"""What the expert refuses."""

from __future__ import annotations

from cuda_agent.errors import CudaAgentError


class Unsupported(CudaAgentError):
    """The built-in expert cannot write kernels for this model.

    operator: ATen or plain name of what it cannot do. line: its line in model.py, None if unknown.
    """

    def __init__(self, operator: str, line: int | None = None, why: str = "") -> None:
        self.operator, self.line, self.why = operator, line, why
        super().__init__(operator, line, why)  # so that it can be pickled, and told across processes

    def __str__(self) -> str:
        where = f" (model.py line {self.line})" if self.line else ""
        return f"the built-in expert has no kernel for {self.operator}{where}{': ' + self.why if self.why else ''}"
