"""The task of a study: its model built for its data, and tried out before anything starts."""

from __future__ import annotations

import platform
import warnings
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import islice
from math import floor, log10
from typing import Any, get_args

import psutil
import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from parley.algorithms.protocol import Algorithm
from parley.core.errors import InputError, ParleyWarning, nearest
from parley.core.key import Key
from parley.core.text import shown
from parley.data import ClientData, DataInfo, Federation
from parley.data.checks import MEASUREMENTS
from parley.data.sources import InMemory
from parley.models.buffers import BufferPolicy, check_policy
from parley.models.spec import ModelSpec, build_module
from parley.study.study import Model
from parley.training.losses import Loss, Weighted, check_order, half_squares, losses, mse
from parley.training.task import Precision, Predictor, Task

_LARGE = 4096
"""A specification with a number of this size is measured before it is built."""
_TOO_LARGE = 10**8
_FAR = 10.0
"""Targets of a mean or deviation beyond this, or of a deviation below its inverse, are worth a hint."""
_LOOKED_AT = 10
"""Clients whose targets are looked at for it."""


def make_task(
    federation: Federation,
    model: Model | None,
    seed: int,
    loss: str | Loss | None = None,
    buffers: BufferPolicy = "average",
    *,
    precision: Precision = "full",
    try_out: bool = True,
) -> Task:
    """The task of a federation and a model, weights drawn from the seed; checked on one sample with `try_out`."""
    info = federation.info
    default = "mse" if info.kind == "regression" else "cross-entropy"
    chosen = losses[loss or default] if loss is None or isinstance(loss, str) else loss
    check_order(chosen, f"the loss {getattr(chosen, '__name__', type(chosen).__name__)}")
    if info.class_weights:
        chosen = Weighted(chosen, info.class_weights)
    if precision not in get_args(Precision):
        raise InputError(f"unknown precision '{precision}': {nearest(str(precision), get_args(Precision))}")
    if model is None:
        if precision != "full":
            raise InputError(f'precision = "{precision}" is for networks with convolutions, and there is no network.')
        return Task(None, chosen, info, len(federation), buffers, public=federation.public)
    _check_size(model, info)
    try:
        module = build_module(model, info.shape, info.outputs, Key(seed).fold("model"), federation.public)
    except (RuntimeError, MemoryError, OverflowError) as error:
        if not isinstance(model, ModelSpec):
            raise  # the user's own code, whose traceback says where
        raise InputError(f"[model] {_called(model)} cannot be built: {_line(error)}.") from None
    if try_out and federation.form.dtype == torch.float64 and not isinstance(model, nn.Module):
        module = module.double()  # what is built here follows the data; the user's own module stays as it is
    check_policy(module, buffers)
    if not any(p.requires_grad for p in module.parameters()):
        raise InputError(f"the model {type(module).__name__} has no trainable parameters.")
    if precision == "bf16":
        _check_bf16(module)
    task = Task(module, chosen, info, len(federation), buffers, public=federation.public, precision=precision)
    if try_out:
        _try_out(task, federation)
    return task


def _check_bf16(module: nn.Module) -> None:
    """Refuse networks that would gain nothing, and say so where the processor has no such instructions."""
    if not any(isinstance(layer, _ConvNd) for layer in module.modules()):
        raise InputError(
            f'precision = "bf16" is for networks with convolutions, and the model {type(module).__name__} has none; '
            'leave precision = "full".'
        )
    if any(p.dtype != torch.float32 for p in module.parameters()):
        raise InputError('precision = "bf16" needs a model in float32; leave precision = "full".')
    here = torch.cpu.get_capabilities()
    if platform.machine() in ("x86_64", "AMD64") and not (here.get("avx512_bf16") or here.get("amx_bf16")):
        warnings.warn(
            'precision = "bf16" works here, but this processor has no instructions for bfloat16 and may be slower with '
            "it.",
            ParleyWarning,
            stacklevel=2,
        )


def pool(federation: Federation) -> Federation:
    """All clients' samples at one client, for centralised baselines."""
    clients = [federation.client(client) for client in federation.ids]
    data = ClientData(torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]))
    return Federation(federation.info, ("all",), InMemory((data,)), test=federation.test, public=federation.public)


def warn_of_scale(algorithm: Algorithm, task: Task, federation: Federation, private: bool) -> None:
    """Hint at regression targets far from mean 0 and deviation 1, which networks begin near; a few clients tell.

    Of a private run nothing is told without noise.
    """
    if private or not algorithm.needs.network or algorithm.needs.cpu or not federation.here:
        return
    if task.info.kind != "regression" or task.loss not in (mse, half_squares):
        return
    targets = []
    for client in islice(federation.ids, _LOOKED_AT):
        with suppress(Exception):  # whose data cannot be read fails by itself, in its first round
            targets.append(federation.client(client).y)
    y = torch.cat(targets).double()
    y = y.reshape(len(y), -1)
    mean, deviation = y.mean(0), y.std(0, correction=0)
    far = torch.maximum(mean.abs(), deviation) > _FAR
    far |= (deviation > 0) & (deviation < 1 / _FAR)
    if far.any():
        k = int(far.int().argmax())
        scale = float(f"{float(deviation[k]):.2g}")
        shift = f"{round(float(mean[k]), 1 - floor(log10(scale or 1.0))):.10g}"  # to a tenth of the deviation
        warnings.warn(
            f"the targets of '{shown(federation.info.name)}' have mean {shift} and deviation {scale:g}, far from the "
            f"scale at which networks learn by gradient steps; train on (target - {shift}) / {scale or 1.0:g} and undo "
            "it in predictions: 'parley stats STUDY --freeze FILE --target-method standard' arranges both.",
            ParleyWarning,
            stacklevel=2,
        )


@torch.no_grad()
def _try_out(task: Task, federation: Federation) -> None:
    """One forward pass, so that a model that does not fit the data is told before anything starts."""
    client = federation.client(federation.ids[0]) if federation.here else federation.form.made_up(2)
    predict = task.predictor(task.initial(), task.initial_buffers())
    try:
        if task.info.vocabulary:
            _check_vocabulary(task, client.x[:1], predict)
        outputs = predict(client.x[:2])
        _check_outputs(task, outputs, len(client.x[:2]))
        value = task.loss(outputs, client.y[:2])
        _check_classes(task, outputs, client.y[:2])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if _wants_floats(task, client.x[:1], predict):
            raise InputError(
                f"the inputs are integers, which are taken for token ids, but the model {type(task.network).__name__} "
                f"takes floats; {MEASUREMENTS}."
            ) from None
        hint = (
            "; convert the data (dtype=... where the federation is made) or the model" if "type" in _line(error) else ""
        )
        raise InputError(
            f"the model {type(task.network).__name__} does not fit samples of shape {tuple(client.x.shape[1:])} "
            f"and {client.x.dtype}: {_line(error)}{hint}."
        ) from None
    if value.shape != (len(client.x[:2]),):
        raise InputError(f"the loss must give one number per sample, [2] for two of them, not {list(value.shape)}.")


def _check_vocabulary(task: Task, x: Tensor, predict: Predictor) -> None:
    try:
        predict(torch.full_like(x, task.info.vocabulary - 1))
    except IndexError:
        raise InputError(
            f"the data have {task.info.vocabulary} token ids, more than the model {type(task.network).__name__} "
            "knows; set its vocabulary, or give a model of next tokens data with such targets."
        ) from None


def _wants_floats(task: Task, x: Tensor, predict: Predictor) -> bool:
    """Whether a model fails with integers, and with nothing but integers."""

    def takes(inputs: Tensor) -> bool:
        try:
            predict(inputs)
        except Exception:
            return False
        return True

    dtype = next(iter(task.initial().values())).dtype
    return not x.is_floating_point() and not takes(x) and takes(x.to(dtype))


def _check_outputs(task: Task, outputs: object, samples: int) -> None:
    name, many = type(task.network).__name__, task.info.outputs
    if not isinstance(outputs, Tensor):
        raise InputError(f"the model {name} must give a tensor, not a {type(outputs).__name__}.")
    if outputs.ndim < 2 or len(outputs) != samples:
        raise InputError(
            f"the model {name} gives outputs of shape {list(outputs.shape)} for {samples} samples, but must give "
            f"[{samples}, {many}]{': end its forward with .unsqueeze(1)' if outputs.ndim == 1 and many == 1 else ''}."
        )


def _check_classes(task: Task, outputs: Tensor, targets: Tensor) -> None:
    """Refuse a model with fewer outputs than classes now, not when a client comes that has the last class."""
    last = task.info.outputs - 1
    if task.info.kind != "classification" or targets.is_floating_point():
        return
    try:
        task.loss(outputs, torch.full_like(targets, last))
    except (RuntimeError, IndexError):
        raise InputError(
            f"the model {type(task.network).__name__} gives {outputs.shape[1]} outputs for a sample, but the data have "
            f"{last + 1} classes."
        ) from None


def _check_size(model: Model, info: DataInfo) -> None:
    """Refuse a specification whose weights alone would not fit into memory; a huge width is mostly a slip."""
    if not isinstance(model, ModelSpec) or isinstance(model, type | nn.Module):
        return
    largest = max(_numbers(model), default=0)
    if largest < _LARGE:
        return
    if largest > _TOO_LARGE:
        raise InputError(f"[model] {_called(model)} cannot be built: {largest} is too large for any of its settings.")
    try:
        with torch.device("meta"):
            module = model.build(tuple(info.shape), info.outputs)
    except Exception:
        return  # what is wrong with it, building it for real will say
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    if size > (memory := psutil.virtual_memory().total):
        raise InputError(
            f"[model] {_called(model)} would have {size / 1e9:,.0f} GB of weights, but {memory / 1e9:,.0f} GB "
            "is all the memory here; make it smaller."
        )


def _numbers(thing: Any) -> list[int]:
    """All whole numbers among the settings of a specification."""
    if isinstance(thing, int):
        return [thing]
    if isinstance(thing, tuple | list):
        return [number for inner in thing for number in _numbers(inner)]
    if is_dataclass(thing) and not isinstance(thing, type):
        return [number for field in fields(thing) for number in _numbers(getattr(thing, field.name))]
    return []


def _called(model: object) -> str:
    return f"the model {type(model).__name__}"


def _line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
