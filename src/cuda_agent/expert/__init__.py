"""The built-in policy without an LLM: it traces a model, plans fused kernels, writes them, and proposes schedules.

`capture_source` runs the task's code and belongs in a confined process; the rest handles JSON and text only.
"""

from cuda_agent.expert.errors import Unsupported
from cuda_agent.expert.plan import plan_graph
from cuda_agent.expert.search import Expert, Proposal

__all__ = ["Expert", "Proposal", "Unsupported", "plan_graph"]
