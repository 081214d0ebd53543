"""A network that takes raw inputs: what was done to the training samples is done to them first."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from parley.data.scaling import Scaling, scaled


class Prepared(nn.Module):
    """`network` behind the fills and scales of its training samples, of which its state dict holds nothing."""

    mean: Tensor
    deviation: Tensor
    fill: Tensor | None

    def __init__(self, network: nn.Module, scaling: Scaling, shape: tuple[int, ...]) -> None:
        """`shape` is that of one sample."""
        super().__init__()
        self.network, self.scaling = network, scaling
        for name, value in zip(("mean", "deviation", "fill"), scaling.tensors(len(shape)), strict=True):
            self.register_buffer(name, value, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.network(scaled(x, self.mean, self.deviation, self.fill)))

    def onnx_model(self, dtype: torch.dtype) -> Any:
        """The network's own ONNX graph behind the same steps; None if it has none."""
        inner = getattr(self.network, "onnx_model", None)
        model = None if inner is None else inner(dtype)
        if model is None:
            return None
        from onnx import TensorProto, helper, numpy_helper

        graph, made = model.graph, helper.make_node
        for node in graph.node:
            node.input[:] = ["scaled" if name == "input" else name for name in node.input]
        steps = [made("Cast", ["input"], ["raw"], to=TensorProto.DOUBLE)]
        if self.fill is not None:
            steps += [made("IsNaN", ["raw"], ["gaps"]), made("Where", ["gaps", "fill", "raw"], ["filled"])]
        steps += [
            made("Sub", ["raw" if self.fill is None else "filled", "mean"], ["centred"]),
            made("Div", ["centred", "deviation"], ["exact"]),
            made("Cast", ["exact"], ["scaled"], to=graph.input[0].type.tensor_type.elem_type),
        ]
        behind = list(graph.node)
        del graph.node[:]
        graph.node.extend([*steps, *behind])
        for name, value in self.named_buffers(recurse=False):
            graph.initializer.append(numpy_helper.from_array(value.numpy(), name))
        return model


def network_of(module: nn.Module) -> nn.Module:
    """The trained network itself, without what is done to raw inputs."""
    return module.network if isinstance(module, Prepared) else module
