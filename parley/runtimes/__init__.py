"""Who executes clients: inline, stacked, pool, or what `auto` picks."""

from parley.core.failure import Failure
from parley.runtimes.auto import open_runtime
from parley.runtimes.protocol import Call, Check, Job, Outcome, Runtime, Score, runtimes

__all__ = ["Call", "Check", "Failure", "Job", "Outcome", "Runtime", "Score", "open_runtime", "runtimes"]
