"""What a user may be told: every error here reads as one sentence that says what, where and how to mend it."""


class CudaAgentError(Exception):
    """Base of all errors meant for the user; `str(error)` is the whole message, no traceback needed."""


class TaskError(CudaAgentError):
    """The task itself is unusable (missing class, syntax error, `get_inputs` that raises, random or constant model)."""


class CandidateError(CudaAgentError):
    """The candidate's files cannot be read as a candidate (no `ModelNew`, no file, unknown layout)."""


class SetupError(CudaAgentError):
    """This machine lacks something the job needs; the message holds the command that mends it."""
