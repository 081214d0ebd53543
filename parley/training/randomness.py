"""Forward randomness (dropout and the like): the one place where torch's default generator is seeded."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from parley.core.key import Key
from parley.training.devices import CPU


class DrawnOnCPU(TorchDispatchMode):
    """Within, every operation that draws random numbers runs on the CPU and its result is moved to where it belongs.

    A GPU's own generator would give other numbers than the CPU's.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = args[0] if args and isinstance(args[0], Tensor) else None
        target = given.device if given is not None else torch.device(kwargs.get("device") or CPU)
        if on_cpu(target):
            return func(*args, **kwargs)
        here = _moved(kwargs, CPU) | ({"device": CPU} if "device" in kwargs else {})
        drawn = func(*_moved(args, CPU), **here)
        if given is not None and func._schema.is_mutable:
            return given.copy_(drawn)
        return _moved(drawn, target)


def on_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _moved(values: Any, device: torch.device) -> Any:
    return tree_map_only(Tensor, lambda value: value.to(device), values)


@contextmanager
def forward_randomness(key: Key, active: bool = True, device: torch.device = CPU) -> Iterator[None]:
    """Within, layers such as dropout draw from a generator seeded by `key`; afterwards nothing has changed."""
    if not active:
        yield
        return
    with torch.random.fork_rng(devices=[]), DrawnOnCPU() if device.type != "cpu" else nullcontext():
        torch.default_generator.manual_seed(key.seed)
        yield
