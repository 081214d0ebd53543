"""A sum of trees as an ordinary module, for taking it out of Parley: safetensors, TorchScript, ONNX's TreeEnsemble."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from parley.algorithms.trees.ensemble import Trees, rounded_down


class TreeModule(nn.Module):
    """first + sum_t tree_t(x), [n, outputs]; all rows go down all trees at once."""

    features: Tensor
    thresholds: Tensor
    values: Tensor
    missing: Tensor
    first: Tensor

    def __init__(self, trees: Trees, first: Tensor, shape: tuple[int, ...], leading_zero: bool = False) -> None:
        """`trees` give all outputs [outputs], or one each in turn; `leading_zero`: the outputs begin with one that is
        always 0 (two classes)."""
        super().__init__()
        self.outputs, self.depth, self.shape, self.leading_zero = len(first), trees.depth, shape, leading_zero
        self.in_turn = trees.outputs < len(first)
        gaps = torch.zeros_like(trees.features, dtype=torch.bool) if trees.missing is None else trees.missing
        self.register_buffer("features", trees.features.long())
        self.register_buffer("thresholds", trees.thresholds)
        self.register_buffer("values", trees.values.double())
        self.register_buffer("missing", gaps)
        self.register_buffer("first", first.double())

    def forward(self, x: Tensor) -> Tensor:
        table = x.flatten(1).to(self.thresholds.dtype)
        roots = torch.arange(self.features.shape[0]) * self.features.shape[1]
        node = torch.zeros(1, 1, dtype=torch.int64).expand(x.shape[0], self.features.shape[0])
        for _ in range(self.depth):
            at = node + roots
            value = table.gather(1, self.features.flatten()[at])
            right = (value > self.thresholds.flatten()[at]) | (value.isnan() & self.missing.flatten()[at])
            node = 2 * node + 1 + right.long()
        leaf = node - self.features.shape[1] + torch.arange(self.features.shape[0]) * self.values.shape[1]
        each = self.values.flatten(0, 1)[leaf]
        if self.in_turn:
            each = each.squeeze(2).unflatten(1, (-1, self.outputs))
        total = each.sum(1) + self.first
        if self.leading_zero:
            total = torch.cat([torch.zeros_like(total), total], dim=1)
        return total.to(x.dtype)

    def onnx_model(self, dtype: torch.dtype) -> Any:
        """As one TreeEnsembleRegressor for float32 inputs; None for others, which need the module's own operations.

        Thresholds are rounded down to float32, so that no input falls on another side.
        """
        if dtype != torch.float32:
            return None
        from onnx import TensorProto, helper

        shift = int(self.leading_zero)
        nodes, weights = self._nodes(shift)
        ensemble = helper.make_node(
            "TreeEnsembleRegressor",
            ["rows"],
            ["output"],
            domain="ai.onnx.ml",
            n_targets=self.outputs + shift,
            aggregate_function="SUM",
            post_transform="NONE",
            base_values=[0.0] * shift + self.first.tolist(),
            nodes_modes=nodes["modes"],
            nodes_featureids=nodes["features"],
            nodes_treeids=nodes["trees"],
            nodes_nodeids=nodes["numbers"],
            nodes_truenodeids=nodes["left"],
            nodes_falsenodeids=nodes["right"],
            nodes_missing_value_tracks_true=nodes["missing"],
            nodes_values=nodes["thresholds"],
            target_treeids=weights["trees"],
            target_nodeids=weights["numbers"],
            target_ids=weights["outputs"],
            target_weights=weights["values"],
        )
        flatten = helper.make_node("Flatten", ["input"], ["rows"], axis=1)
        sides: tuple[tuple[str, list[str | int | None]], ...] = (
            ("input", ["batch", *self.shape]),
            ("output", ["batch", self.outputs + shift]),
        )
        given, output = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sides)
        graph = helper.make_graph([flatten, ensemble], "trees", [given], [output])
        versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=versions, ir_version=8)

    def _nodes(self, shift: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Nodes and leaves one by one, without those that send everything left."""
        names = ("modes", "features", "trees", "numbers", "left", "right", "missing", "thresholds")
        nodes: dict[str, list[Any]] = {name: [] for name in names}
        weights: dict[str, list[Any]] = {name: [] for name in ("trees", "numbers", "outputs", "values")}
        inner, most = self.features.shape[1], float(torch.finfo(self.thresholds.dtype).max)
        features, missing = self.features.tolist(), self.missing.tolist()
        exact, values = self.thresholds.double().tolist(), self.values.tolist()
        thresholds = rounded_down(self.thresholds.double(), torch.float32).tolist()
        for tree in range(len(features)):
            waiting, numbered = [0], 1
            number = {0: 0}
            while waiting:
                old = waiting.pop()
                node = number[old]
                at = old
                while at < inner and exact[tree][at] >= most and not missing[tree][at]:
                    at = 2 * at + 1
                leaf = at >= inner
                if not leaf:
                    number[2 * at + 1], number[2 * at + 2] = numbered, numbered + 1
                    waiting += [2 * at + 2, 2 * at + 1]
                row = (
                    "LEAF" if leaf else "BRANCH_LEQ",
                    0 if leaf else features[tree][at],
                    tree,
                    node,
                    0 if leaf else numbered,
                    0 if leaf else numbered + 1,
                    0 if leaf else int(not missing[tree][at]),
                    0.0 if leaf else thresholds[tree][at],
                )
                for name, value in zip(names, row, strict=True):
                    nodes[name].append(value)
                if leaf:
                    given = values[tree][at - inner]
                    outputs = range(self.outputs) if len(given) == self.outputs else (tree % self.outputs,)
                    for output, value in zip(outputs, given, strict=True):
                        for name, part in zip(weights, (tree, node, shift + output, value), strict=True):
                            weights[name].append(part)
                else:
                    numbered += 2
        return nodes, weights
