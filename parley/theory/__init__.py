"""What theory says before any training: pure functions on NumPy arrays in float64, no torch."""

from parley.core.lazy import lazy

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted(_HOME)
