"""Model specifications: what a user writes (`mlp(100)`, `[model] name = "mlp"`) before shapes and seeds are known."""

from collections.abc import Callable, Collection
from copy import deepcopy
from inspect import signature
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from parley.core.errors import InputError, nearest
from parley.core.key import Key
from parley.core.registry import Registry
from parley.models.structure import Step, Traits, traits

__all__ = ["ModelSpec", "Step", "Traits", "build_module", "models", "traits"]


@runtime_checkable
class ModelSpec(Protocol):
    """A recipe for a module, by convention a frozen dataclass with a docstring under each field."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A fresh module for samples of `shape` (without the batch dimension) with `outputs` numbers per sample."""
        ...


@runtime_checkable
class PublicSpec(ModelSpec, Protocol):
    """A recipe that also looks at the inputs everybody may see, such as landmarks of features."""

    def build_on(self, shape: tuple[int, ...], outputs: int, public: Tensor | None) -> nn.Module:
        """As `build`; `public` are the federation's public inputs [m, *shape], if it has any."""
        ...


models: Registry[type[ModelSpec]] = Registry("model")


def build_module(
    model: nn.Module | ModelSpec | Callable[[], nn.Module],
    shape: tuple[int, ...],
    outputs: int,
    key: Key,
    public: Tensor | None = None,
) -> nn.Module:
    """The module to train: built from a spec or a function with weights drawn from `key`, or a copy of `model` itself.

    The same key gives the same weights, and the global random state is left as it was. An `nn.Module` keeps the
    weights it has; the caller's instance is never touched.
    """
    if isinstance(model, nn.Module):
        return _copy(model)
    if outputs < 1:
        raise InputError(f"a model needs at least one output, not {outputs}.")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(key.seed)
        # A class in place of an instance (`models.linear` for `models.linear()`) means its defaults.
        made: object = _called(model) if isinstance(model, type) else model
        if isinstance(made, PublicSpec):
            made = made.build_on(tuple(shape), outputs, public)
        elif isinstance(made, ModelSpec):
            made = made.build(tuple(shape), outputs)
        elif callable(made) and not isinstance(made, nn.Module):
            made = _called(made)
    if not isinstance(made, nn.Module):
        raise InputError(
            f"a model must be an nn.Module, a model spec or a function that returns a module, "
            f"but {model!r} gives a {type(made).__name__}."
        )
    return made


def _called(make: Callable[[], object]) -> object:
    try:
        signature(make).bind()
    except TypeError as error:
        name = getattr(make, "__name__", type(make).__name__)
        raise InputError(
            f"the model {name} cannot be made without arguments ({error}); pass a module or a function without them."
        ) from None
    except ValueError:
        pass  # a callable that does not say what it takes
    return make()


def _copy(module: nn.Module) -> nn.Module:
    lazy = [name for name, parameter in module.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise InputError(f"the model's parameter '{lazy[0]}' has no shape yet; run the module once on a sample first.")
    try:
        return deepcopy(module)
    except RuntimeError as error:
        raise InputError(
            f"the {type(module).__name__} cannot be copied ({error}); pass a function that builds it."
        ) from error


def check_choice(model: str, field: str, value: str, choices: Collection[str]) -> None:
    """Refuse a value of a spec's field that is not one of its choices."""
    if value not in choices:
        raise InputError(f"unknown {field} '{value}' of model '{model}': {nearest(str(value), choices)}")


def check_positive(model: str, field: str, *values: int) -> None:
    """Refuse sizes below one."""
    for value in values:
        if value < 1:
            raise InputError(f"{field} of model '{model}' must be at least 1, not {value}.")


def check_image(model: str, shape: tuple[int, ...], smallest: int) -> None:
    """Refuse samples that are not [channels, height, width] images of at least `smallest` pixels a side."""
    if len(shape) != 3 or min(shape[1:]) < smallest or shape[0] < 1:
        raise InputError(
            f"model '{model}' needs images of shape (channels, height, width) with at least "
            f"{smallest}x{smallest} pixels, but a sample here has shape {tuple(shape)}."
        )


def check_tokens(model: str, shape: tuple[int, ...]) -> None:
    """Refuse samples that are not sequences of token ids."""
    if len(shape) != 1 or shape[0] < 1:
        raise InputError(
            f"model '{model}' needs sequences of token ids of shape (length,), "
            f"but a sample here has shape {tuple(shape)}."
        )
