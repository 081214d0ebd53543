"""Linear models and multilayer perceptrons: plain `nn.Sequential` chains, which every runtime can stack."""

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, get_args

from torch import nn

from parley.core.errors import InputError
from parley.models.spec import check_choice, check_positive, models

Activation = Literal["relu", "tanh"]
MlpInit = Literal["kaiming", "torch"]


@models("linear")
@dataclass(frozen=True)
class Linear:
    """Logistic or linear regression: one dense layer on the flattened sample."""

    bias: bool = True
    """Add a bias to each output."""
    zero: bool = False
    """Start at zero weights instead of torch's random ones (the loss is convex, so either start is fine)."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
        """Flatten and one dense layer, prod(shape) -> outputs."""
        layer = nn.Linear(_features("linear", shape), outputs, bias=self.bias)
        if self.zero:
            for parameter in layer.parameters():
                nn.init.zeros_(parameter)
        return nn.Sequential(nn.Flatten(), layer)


@models("mlp")
@dataclass(frozen=True)
class Mlp:
    """Multilayer perceptron on the flattened sample; Yue et al. uses one hidden layer of 100 ReLU units."""

    hidden: tuple[int, ...] = (100,)
    """Width of each hidden layer."""
    activation: Activation = "relu"
    """Non-linearity after each hidden layer."""
    init: MlpInit = "kaiming"
    """Start: 'kaiming' (normal weights of variance gain^2/fan-in, zero biases; Yue et al.) or 'torch' (its default)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        if not self.hidden:
            raise InputError("model 'mlp' needs at least one hidden layer; use 'linear' for none.")
        check_positive("mlp", "each hidden width", *self.hidden)
        check_choice("mlp", "activation", self.activation, get_args(Activation))
        check_choice("mlp", "init", self.init, get_args(MlpInit))

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
        """Flatten, then prod(shape) -> hidden... -> outputs with the activation between dense layers."""
        widths = (_features("mlp", shape), *self.hidden)
        chain: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(widths):
            chain += [nn.Linear(fan_in, fan_out), nn.ReLU() if self.activation == "relu" else nn.Tanh()]
        module = nn.Sequential(*chain, nn.Linear(widths[-1], outputs))
        if self.init == "kaiming":
            for layer in module:
                if isinstance(layer, nn.Linear):
                    nn.init.kaiming_normal_(layer.weight, nonlinearity=self.activation)
                    nn.init.zeros_(layer.bias)
        return module


def mlp(*hidden: int, activation: Activation = "relu", init: MlpInit = "kaiming") -> Mlp:
    """`mlp(200, 100)`: a perceptron with hidden layers of these widths."""
    return Mlp(hidden, activation, init)


def _features(model: str, shape: tuple[int, ...]) -> int:
    if prod(shape) < 1:
        raise InputError(
            f"model '{model}' needs samples with at least one number, but a sample here has shape {shape}."
        )
    return prod(shape)
