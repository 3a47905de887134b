"""From ATen operators to tensor primitives: one module per operator family; importing them registers their rules."""

from cuda_agent.expert.lower import creation, gathers, norms, pointwise, reductions, softmax, views
from cuda_agent.expert.lower.registry import Context, rule_for

__all__ = ["Context", "creation", "gathers", "norms", "pointwise", "reductions", "rule_for", "softmax", "views"]
