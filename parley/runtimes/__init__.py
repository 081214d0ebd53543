"""Who executes clients: inline, stacked, pool, wire, or what `auto` picks."""

from parley.core.failure import Failure
from parley.runtimes.auto import open_runtime
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Runtime, Score, Stamp, runtimes

__all__ = [
    "Answer", "Call", "EvaluationCall", "Failure", "Job", "Runtime", "Score", "Stamp", "open_runtime", "runtimes",
]  # fmt: skip
