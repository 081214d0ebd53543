"""How the local step size changes in the course of a run: by round, or by the steps that a client has taken."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from parley.core.errors import InputError
from parley.core.registry import Registry

schedules: Registry[type[Schedule]] = Registry("schedule")


@dataclass(frozen=True)
class Schedule:
    """The step size is lr times a factor."""

    by: ClassVar[Literal["round", "step"]] = "round"
    """What it goes by: the number of rounds before, or of steps this client took before, over all its rounds (which
    the method must keep count of: keep = true)."""

    def factor(self, taken: int) -> float:
        """What lr is multiplied by after `taken` rounds or steps."""
        return 1.0


@schedules("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The step size is lr throughout."""


@schedules("exponential")
@dataclass(frozen=True)
class Exponential(Schedule):
    """The step size is multiplied by `decay` every `every` rounds."""

    decay: float = 0.99
    """Factor in (0, 1]."""
    every: int = 1
    """Rounds between two changes."""

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1 or self.every < 1:
            raise InputError(f"decay must lie in (0, 1] and every be at least 1, not {self.decay} and {self.every}.")

    def factor(self, taken: int) -> float:
        return float(self.decay ** (taken // self.every))


@schedules("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from lr down to `floor` lr over `rounds` rounds, then `floor` lr."""

    rounds: int = 100
    """Rounds until the floor is reached."""
    floor: float = 0.0
    """Share of lr at the end, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.rounds < 1 or not 0 <= self.floor <= 1:
            raise InputError(f"rounds must be at least 1 and floor lie in [0, 1], not {self.rounds} and {self.floor}.")

    def factor(self, taken: int) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * min(taken / self.rounds, 1.0))) / 2


@schedules("inverse")
@dataclass(frozen=True)
class Inverse(Schedule):
    """The step size is lr / (t / every + offset) after t steps, as Gholami and Seferoglu fine-tune (Table 5)."""

    by: ClassVar[Literal["round", "step"]] = "step"

    every: float = 100.0
    """Steps after which the divisor has grown by one."""
    offset: float = 10.0
    """The divisor at the first step."""

    def __post_init__(self) -> None:
        if not (self.every > 0 and self.offset > 0):
            raise InputError(f"every and offset must be above 0, not {self.every} and {self.offset}.")

    def factor(self, taken: int) -> float:
        return 1.0 / (taken / self.every + self.offset)
