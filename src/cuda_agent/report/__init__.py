"""Markdown of a result: what was made, how fast it is, and how far the figures can be trusted."""

from cuda_agent.report.markdown import render_report

__all__ = ["render_report"]
