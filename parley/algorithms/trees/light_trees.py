"""Trees that LightGBM grows, as flat ones: columns, thresholds, leaf values, and nothing of what it counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from parley.algorithms.trees.ensemble import Trees, complete, stacked
from parley.algorithms.trees.histograms import Floats, Objective, Whole
from parley.core.errors import InputError
from parley.core.extras import how_to_install


def check_installed() -> Any:
    """The package, or a sentence that says how to get it."""
    try:
        import lightgbm
    except ImportError:
        raise InputError(f"local trees need the package lightgbm: {how_to_install('trees')}.") from None
    return lightgbm


def boosted(
    objective: Objective, x: Floats, y: Floats | Whole, raw: Floats, trees: int, depth: int, settings: Mapping[str, Any]
) -> Trees:
    """`trees` trees per output that lower the loss at the predictions `raw` [n, outputs], those of the outputs in turn.

    Gradients are ours: LightGBM's own would give a client that has one class nothing to learn.
    """
    lightgbm, outputs = check_installed(), raw.shape[1]

    def derivatives(predicted: Floats, data: Any) -> tuple[Floats, Floats]:
        g, h = _derivatives(objective, predicted.reshape(raw.shape, order="F"), y)
        return (g.ravel(order="F"), h.ravel(order="F")) if outputs == 1 else (g, h)

    fixed = {
        "objective": derivatives,
        "num_class": outputs,
        "verbosity": -1,
        "num_threads": 1,
        "seed": 0,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,
        "min_data_in_bin": 1,
        "zero_as_missing": False,
    }
    data = lightgbm.Dataset(
        x,
        init_score=raw.ravel(order="F") if outputs == 1 else raw,
        params={"verbosity": -1, "max_bin": settings["max_bin"], "min_data_in_bin": 1, "feature_pre_filter": False},
        label=np.zeros(len(x)),
    )
    booster = lightgbm.train({**fixed, **settings}, data, num_boost_round=trees)
    grown = [_flat(tree["tree_structure"], depth, x.shape[1]) for tree in booster.dump_model()["tree_info"]]
    for _ in range(trees * outputs - len(grown)):  # it stops where nothing can be split
        grown.append(_flat({"leaf_value": 0.0}, depth, x.shape[1]))
    return stacked(grown)


def _derivatives(objective: Objective, raw: Floats, y: Floats | Whole) -> tuple[Floats, Floats]:
    if objective == "squares":
        return raw - y.reshape(raw.shape), np.ones_like(raw)
    if objective == "logistic":
        p = 1 / (1 + np.exp(-raw))
        return p - y[:, None], p * (1 - p)
    e = np.exp(raw - raw.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True)
    return p - (y[:, None] == np.arange(raw.shape[1])), p * (1 - p)


def _flat(root: Mapping[str, Any], depth: int, columns: int) -> Trees:
    left, right, features, thresholds, values, missing = ([] for _ in range(6))  # type: ignore[var-annotated]

    def visit(node: Mapping[str, Any]) -> int:
        number = len(left)
        inner = "split_feature" in node
        limit = float(node["threshold"]) if inner else 0.0
        for many, values_of_tree in (
            (left, -1),
            (right, -1),
            (features, node["split_feature"] if inner else 0),
            (thresholds, limit),
            (values, node.get("leaf_value", 0.0)),
            (missing, inner and _gaps_right(node, limit)),
        ):
            many.append(values_of_tree)
        if inner:
            if node["decision_type"] != "<=":
                raise InputError(f"LightGBM split by '{node['decision_type']}', which flat trees cannot.")
            left[number], right[number] = visit(node["left_child"]), visit(node["right_child"])
        return number

    visit(root)
    whole = [np.array(values_of_tree) for values_of_tree in (left, right, features, thresholds)]
    outputs, gaps = np.array(values, np.float64)[:, None], np.array(missing, np.bool_)
    return complete(whole[0], whole[1], whole[2], whole[3], outputs, depth, columns, torch.float64, gaps)


def _gaps_right(node: Mapping[str, Any], limit: float) -> bool:
    """Where missing values go; without any among a client's rows, LightGBM takes them for 0."""
    return not node["default_left"] if node["missing_type"] == "NaN" else limit < 0
