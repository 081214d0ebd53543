"""A network that takes raw inputs: what was done to the training samples is done to them first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from parley.data.dates import CALENDAR
from parley.data.encoding import Encoder, Encoding
from parley.data.scaling import Scaler, Scaling


class Prepared(nn.Module):
    """`network` behind the fills and scales of its training samples, of which its state dict holds nothing."""

    def __init__(self, network: nn.Module, scaling: Scaling | Encoding, shape: tuple[int, ...]) -> None:
        """`shape` is that of one raw sample."""
        super().__init__()
        self.network, self.scaling = network, scaling
        self.step = Encoder(scaling) if isinstance(scaling, Encoding) else Scaler(scaling, len(shape))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.network(self.step(x)))

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
        kind = graph.input[0].type.tensor_type.elem_type
        steps = [made("Cast", ["input"], ["whole"], to=TensorProto.DOUBLE)]
        if isinstance(self.step, Encoder):
            steps += [
                made("Gather", ["whole", "source"], ["raw"], axis=1),
                made("IsNaN", ["raw"], ["gaps"]),
                *self._calendar(graph),
                made("Equal", ["filled", "code"], ["equal"]),
                made("Or", ["level", "gap"], ["flagged"]),
                made("Cast", ["gaps"], ["missing"], to=TensorProto.DOUBLE),
                made("Cast", ["equal"], ["present"], to=TensorProto.DOUBLE),
                made("Where", ["gap", "missing", "present"], ["ones"]),
                made("Sub", ["filled", "center"], ["centred"]),
                made("Div", ["centred", "scale"], ["number"]),
                made("Where", ["flagged", "ones", "number"], ["exact"]),
            ]
            graph.input[0].type.tensor_type.shape.dim[1].dim_value = len(cast(Encoding, self.scaling).columns)
        else:
            fills = self.step.fill is not None
            if fills:
                steps += [made("IsNaN", ["whole"], ["gaps"]), made("Where", ["gaps", "fill", "whole"], ["filled"])]
            steps += [
                made("Sub", ["filled" if fills else "whole", "mean"], ["centred"]),
                made("Div", ["centred", "deviation"], ["exact"]),
            ]
        steps.append(made("Cast", ["exact"], ["scaled"], to=kind))
        behind = list(graph.node)
        del graph.node[:]
        graph.node.extend([*steps, *behind])
        for name, value in self.step.named_buffers():
            graph.initializer.append(numpy_helper.from_array(value.numpy(), name))
        return model

    def _calendar(self, graph: Any) -> list[Any]:
        """The filled cells, parts of dates computed where there are any."""
        from onnx import helper, numpy_helper

        parts = [name for name, _ in self.step.named_buffers() if name.startswith("of_")]
        nodes = [helper.make_node("Where", ["gaps", "fill", "raw"], ["date_days" if parts else "filled"])]
        known = {"days"}
        for result, operator, *operands in map(str.split, CALENDAR.strip().splitlines() if parts else ()):
            for number in set(operands) - known:
                graph.initializer.append(numpy_helper.from_array(np.array(float(number)), f"date_{number}"))
            nodes.append(helper.make_node(operator, [f"date_{name}" for name in operands], [f"date_{result}"]))
            known |= {result, *operands}
        before = "date_days"
        for name in parts:
            after = "filled" if name == parts[-1] else f"with_{name}"
            nodes.append(helper.make_node("Where", [name, f"date_{name.removeprefix('of_')}", before], [after]))
            before = after
        return nodes


class Recalibrated(nn.Module):
    """`network` of two classes, the difference of whose logits becomes slope * difference + shift."""

    def __init__(self, network: nn.Module, method: str, slope: float, shift: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.network, self.method, self.slope, self.shift = network, method, slope, shift
        half = slope / 2
        self.register_buffer("turn", torch.tensor([[half, -half], [-half, half]], dtype=dtype), persistent=False)
        self.register_buffer("offset", torch.tensor([-shift / 2, shift / 2], dtype=dtype), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(cast(Tensor, self.network(x)))

    def after(self, logits: Tensor) -> Tensor:
        """What becomes of the network's logits [n, 2]."""
        return logits @ cast(Tensor, self.turn) + cast(Tensor, self.offset)

    def onnx_model(self, dtype: torch.dtype) -> Any:
        """The network's own ONNX graph with the same step behind it; None if it has none."""
        return _with_steps_behind(self, dtype, (("MatMul", "turn"), ("Add", "offset")))


class Rescaled(nn.Module):
    """`network` of scaled targets, its outputs in the target's own unit: scale * output + center."""

    def __init__(self, network: nn.Module, center: tuple[float, ...], scale: tuple[float, ...]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("target_center", center), ("target_scale", scale)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs = cast(Tensor, self.network(x))
        values = outputs.double() * cast(Tensor, self.target_scale) + cast(Tensor, self.target_center)
        return values.to(outputs.dtype)

    def onnx_model(self, dtype: torch.dtype) -> Any:
        """The network's own ONNX graph with the same step behind it; None if it has none."""
        return _with_steps_behind(self, dtype, (("Mul", "target_scale"), ("Add", "target_center")))


def _with_steps_behind(module: Recalibrated | Rescaled, dtype: torch.dtype, steps: Sequence[tuple[str, str]]) -> Any:
    """The ONNX graph of a module's network with operations on its outputs, each with one of the module's buffers and
    in its precision; None if the network has none."""
    inner = getattr(module.network, "onnx_model", None)
    model = None if inner is None else inner(dtype)
    if model is None:
        return None
    from onnx import helper, numpy_helper

    graph, made, buffers = model.graph, helper.make_node, dict(module.named_buffers(recurse=False))
    for node in graph.node:
        node.output[:] = ["network_output" if name == "output" else name for name in node.output]
        node.input[:] = ["network_output" if name == "output" else name for name in node.input]
    kind = helper.np_dtype_to_tensor_dtype(next(iter(buffers.values())).numpy().dtype)
    graph.node.append(made("Cast", ["network_output"], ["behind_0"], to=kind))
    for number, (operation, name) in enumerate(steps):
        graph.node.append(made(operation, [f"behind_{number}", name], [f"behind_{number + 1}"]))
        graph.initializer.append(numpy_helper.from_array(buffers[name].numpy(), name))
    graph.node.append(made("Cast", [f"behind_{len(steps)}"], ["output"], to=graph.output[0].type.tensor_type.elem_type))
    return model


def recalibration_of(module: nn.Module) -> Recalibrated | None:
    """The step behind the network, if there is one."""
    behind = module.network if isinstance(module, Prepared) else module
    return behind if isinstance(behind, Recalibrated) else None


def network_of(module: nn.Module) -> nn.Module:
    """The trained network itself, without what is done to raw inputs and to its outputs."""
    network = module.network if isinstance(module, Prepared) else module
    return network.network if isinstance(network, Recalibrated | Rescaled) else network


def rescaling_of(module: nn.Module) -> Rescaled | None:
    """The step from scaled targets back, if there is one."""
    behind = module.network if isinstance(module, Prepared) else module
    return behind if isinstance(behind, Rescaled) else None
