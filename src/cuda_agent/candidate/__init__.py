"""What is judged: the candidate's files, in one of three forms, and the launcher ABI."""

from cuda_agent.candidate.candidate import Candidate, Form, load_candidate

__all__ = ["Candidate", "Form", "load_candidate"]
