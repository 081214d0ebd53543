"""In which form a client sends the Jacobian of its samples, and how the server reads it.

factored   activations and back-propagated sensitivities of dense layers, rows of the others: lossless. SENDS THE
           DATA: what enters a dense first layer are the inputs.
dense      every entry, n outputs numbers a weight. SENDS THE DATA: a row of a dense first layer is delta (x) [x, 1],
           so the inputs are its weights' entries divided by its bias's.
top-k      the largest entries of every row, with their places; what they are of the inputs is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import torch

from parley.algorithms.ntk.jacobian import Jacobian, Rows, Sparse, jacobian
from parley.core.form import Form
from parley.core.message import Message
from parley.core.tree import Tree
from parley.training.task import Task

Upload = Literal["factored", "dense", "top-k"]
GROUPS = ("activations", "sensitivities", "rows", "entries")
"""The trees that the forms take, each with one row a sample."""
_AT_ONCE = 2**27
"""Bytes of rows that are written out to find their largest entries."""


def sent(jac: Jacobian, upload: Upload, share: float, order: Mapping[str, object]) -> dict[str, Tree]:
    """The trees of a reply; `order`: the parameters as the server has them."""
    if upload == "factored":
        return jac.tree()
    if upload == "dense":
        rows = jac.rows()
        return {"rows": {name: rows[name] for name in order}}
    few = max(1, _AT_ONCE // sum(value.nbytes for value in jac[:1].rows().values()))
    parts = []
    for start in range(0, len(jac), few):
        rows = jac[start : start + few].rows()
        parts.append(Sparse.of(Rows.of({name: rows[name] for name in order}), share))
    kept = Sparse.cat(parts)
    return {"entries": {"values": kept.values, "places": kept.places}}


def received(message: Message, task: Task) -> Jacobian:
    """The Jacobian that a reply has, in whichever form."""
    shapes = {name: tuple(spec[1]) for name, spec in task.form.items() if spec is not None}
    if "entries" in message:
        entries = message["entries"]
        kept = Sparse(shapes, entries["values"], entries["places"])  # type: ignore[arg-type]
        kept.check()
        return Jacobian((kept,), task.info.outputs)
    return Jacobian.of({group: message.get(group) for group in GROUPS[:3]}, shapes, task.info.outputs)  # type: ignore[arg-type]


def form_of(task: Task, upload: Upload, share: float) -> dict[str, Form]:
    """The forms of those trees, for any number of samples."""
    if upload == "factored":
        return _factored(task)
    dtype, outputs = _dtype(task), task.info.outputs
    if upload == "dense":
        return {"rows": Form({n: (dtype, (None, outputs, *spec[1])) for n, spec in task.form.items() if spec})}
    size = sum(value.numel() for value in task.initial().values())
    count = max(1, round(share * size))
    return {"entries": Form(values=(dtype, (None, outputs, count)), places=(torch.int32, (None, outputs, count)))}


@lru_cache(maxsize=16)
def _factored(task: Task) -> dict[str, Form]:
    """From the Jacobian at a sample of zeros."""
    module, training = task.network, task.network.training
    module.eval()
    try:
        tokens = next((p for p in module.modules() if isinstance(p, torch.nn.Embedding)), None) is not None
        x = torch.zeros(1, *task.info.shape, dtype=torch.int64 if tokens else _dtype(task))
        trees = jacobian(module, {}, x).tree()
    finally:
        module.train(training)
    return {group: Form({n: (v.dtype, (None, *v.shape[1:])) for n, v in tree.items()}) for group, tree in trees.items()}


def _dtype(task: Task) -> torch.dtype:
    return next(iter(task.initial().values())).dtype
