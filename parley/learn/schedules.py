"""How a client's step size changes over the steps it has taken."""

from __future__ import annotations

from dataclasses import dataclass

from parley.core.errors import InputError
from parley.core.registry import Registry

schedules: Registry[type[Schedule]] = Registry("schedule")


@dataclass(frozen=True)
class Schedule:
    """The step size is lr times a factor that depends on the number of steps taken before."""

    def factor(self, taken: int) -> float:
        """What lr is multiplied by in the step after `taken` steps."""
        return 1.0


@schedules("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The step size is lr throughout."""


@schedules("inverse")
@dataclass(frozen=True)
class Inverse(Schedule):
    """The step size is lr / (t / every + offset) after t steps, as paper 004 fine-tunes (Table 5)."""

    every: float = 100.0
    """Steps after which the divisor has grown by one."""
    offset: float = 10.0
    """The divisor at the first step."""

    def __post_init__(self) -> None:
        if not (self.every > 0 and self.offset > 0):
            raise InputError(f"every and offset must be above 0, not {self.every} and {self.offset}.")

    def factor(self, taken: int) -> float:
        return 1.0 / (taken / self.every + self.offset)
