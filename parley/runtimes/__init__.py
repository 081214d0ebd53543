"""Who executes clients: inline, stacked, pool, wire, ray, or what `auto` picks. Each loads when it is chosen."""

from parley.core.failure import Failure
from parley.runtimes.auto import open_runtime
from parley.runtimes.protocol import Answer, Call, EvaluationCall, Job, Runtime, Score, Stamp, runtimes

__all__ = [
    "Answer",
    "Call",
    "EvaluationCall",
    "Failure",
    "Job",
    "Runtime",
    "Score",
    "Stamp",
    "open_runtime",
    "runtimes",
]

runtimes.homes |= {name: f"parley.runtimes.{name}" for name in ("inline", "pool", "ray", "stacked", "wire")}
