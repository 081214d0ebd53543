"""Which columns a trained model goes by: what splits on them gained, or what is lost when they are shuffled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData
from parley.engine.run import Run
from parley.training.metrics import ALWAYS, scorers, smaller_is_better

By = Literal["gain", "permutation"]


def importance(
    run: Run,
    by: By = "gain",
    *,
    data: ClientData | None = None,
    metric: str | None = None,
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, float]:
    """Column -> importance, the largest first.

    "gain": the share of all splits' gain that the column has; the server knows it of histogram boosting. "permutation",
    for any method: by how much `metric` (accuracy or loss unless given) gets worse when the column's values are
    shuffled among the rows of `data` (by default the central test set), the mean over `repeats`.
    """
    names = run.task.info.columns or tuple(f"x{i}" for i in range(int(np.prod(run.task.info.shape))))
    if by == "gain":
        gains = run.state.get("bins").get("gains")
        if gains is None:
            raise InputError(f'{run.algorithm.title} keeps no gains of its splits; use by = "permutation".')
        values = (gains / gains.sum().clamp_min(1e-300)).tolist()
    else:
        values = _permuted(run, data, metric, repeats, Key(seed).fold("permutation"))
    return _sorted(dict(zip(names, values, strict=True)))


def _permuted(run: Run, data: ClientData | None, metric: str | None, repeats: int, key: Key) -> list[float]:
    data = run.federation.test if data is None else data
    if data is None:
        raise InputError("permutation needs samples: the federation has no central test set, so give some as data.")
    regression = run.task.info.kind == "regression"
    name = metric or ("loss" if regression else "accuracy")
    known = scorers([name], run.task.info)
    sign = -1.0 if smaller_is_better(name, known) else 1.0

    def score(x: torch.Tensor) -> float:
        with torch.no_grad():
            outputs = run.predictor()(x)
        if name == "loss":
            return float(run.task.loss(outputs, data.y).double().mean())
        if name in ALWAYS:
            return float((outputs.argmax(1) == data.y).double().mean())
        return known[name](outputs, data.y)

    rows = data.x.flatten(1)
    whole, scores = score(data.x), []
    for column in range(rows.shape[1]):
        lost = []
        for repeat in range(repeats):
            order = torch.from_numpy(key.fold(column, repeat).numpy().permutation(len(rows)))
            shuffled = rows.clone()
            shuffled[:, column] = rows[order, column]
            lost.append(sign * (whole - score(shuffled.view_as(data.x))))
        scores.append(float(np.mean(lost)))
    return scores


def _sorted(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1]))
