"""The judge: is a candidate right, and how fast is it? It cannot be talked round.

`LocalJudge` runs a referee (our code: arenas, comparison, clock) and confined runners (the task's and the candidate's
code).
"""

from cuda_agent.judge.job import Handle, Job, Judge, Settings
from cuda_agent.judge.local import LocalJudge
from cuda_agent.judge.verdict import Interval, Times, Verdict

__all__ = ["Handle", "Interval", "Job", "Judge", "LocalJudge", "Settings", "Times", "Verdict"]
