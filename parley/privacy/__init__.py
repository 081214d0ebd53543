"""Differential privacy of clients: one plan for sampling, clipping, noise and accounting; they cannot disagree."""

from parley.core.lazy import lazy

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted(_HOME)
