"""What happens to running statistics (BatchNorm buffers) in a federation: a policy the user states, never a surprise.

- `average`: floating-point buffers are averaged like weights, integer ones (counters) are kept by each side.
- `local`: buffers never travel; each client keeps its own, and central evaluation uses `batch_statistics`.
- `refuse`: a model with such buffers is an error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

from parley.core.errors import InputError, nearest
from parley.models.structure import updated_buffers

BufferPolicy = Literal["average", "local", "refuse"]


def check_policy(module: nn.Module, policy: BufferPolicy) -> None:
    """Refuse an unknown policy, and under 'refuse' a module whose buffers training updates."""
    if policy not in get_args(BufferPolicy):
        raise InputError(f"unknown buffer policy '{policy}': {nearest(str(policy), get_args(BufferPolicy))}")
    updated = next(updated_buffers(module), None)
    if policy == "refuse" and updated is not None:
        raise InputError(
            f"training updates the model's buffer '{updated}' and the buffer policy is 'refuse': use a model without "
            f"running statistics (group normalisation), or choose the policy 'average' or 'local'."
        )


def float_buffers(module: nn.Module) -> tuple[str, ...]:
    """Names of the persistent floating-point buffers, such as running means: the ones that can be averaged."""
    return tuple(name for name, buffer in _persistent(module) if buffer.is_floating_point())


def int_buffers(module: nn.Module) -> tuple[str, ...]:
    """Names of the other persistent buffers, such as batch counters: the ones that have no mean."""
    return tuple(name for name, buffer in _persistent(module) if not buffer.is_floating_point())


def _persistent(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    saved = module.state_dict(keep_vars=True).keys()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


@contextmanager
def batch_statistics(module: nn.Module) -> Iterator[None]:
    """Inside, normalisation layers use the statistics of the batch at hand, whatever the mode, and update no buffer.

    The way to evaluate a model centrally whose running statistics stayed with the clients. Predictions then depend
    on the batch: use large ones. Works under `torch.func.functional_call` as well, with or without buffers given.
    """
    replaced: list[nn.Module] = []
    try:
        for layer in module.modules():
            if isinstance(layer, _BatchNorm | _InstanceNorm) and layer.track_running_stats:
                normalise = _batch_norm if isinstance(layer, _BatchNorm) else _instance_norm
                # An attribute of the instance hides the class's forward until it is deleted.
                layer.__dict__["forward"] = partial(normalise, layer)
                replaced.append(layer)
        yield
    finally:
        for layer in replaced:
            del layer.__dict__["forward"]


def _batch_norm(layer: _NormBase, x: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, layer.weight, layer.bias, training=True, eps=layer.eps)


def _instance_norm(layer: _NormBase, x: Tensor) -> Tensor:
    return F.instance_norm(x, None, None, layer.weight, layer.bias, use_input_stats=True, eps=layer.eps)
