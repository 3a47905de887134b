"""What this machine offers, and the one command that mends each thing that is missing."""

from cuda_agent.doctor.examine import Finding, Findings, examine

__all__ = ["Finding", "Findings", "examine"]
