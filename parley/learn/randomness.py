"""Forward randomness (dropout and the like): the one place where torch's default generator is seeded."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from parley.core.key import Key


@contextmanager
def forward_randomness(key: Key, active: bool = True) -> Iterator[None]:
    """Within, layers such as dropout draw from a generator seeded by `key`; afterwards nothing has changed."""
    if not active:
        yield
        return
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.seed)
        yield
