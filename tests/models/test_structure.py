"""Traits read off layers."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from parley import models
from parley.core.key import Key
from parley.models import Step, traits


def test_dense_chain_of_an_mlp_names_its_tensors() -> None:
    module = models.build_module(models.mlp(5, activation="tanh"), (1, 2, 2), 3, Key(0))
    assert traits(module).dense == (
        Step("flatten"),
        Step("linear", "1.weight", "1.bias"),
        Step("tanh"),
        Step("linear", "3.weight", "3.bias"),
    )
    assert set(module.state_dict()) == {"1.weight", "1.bias", "3.weight", "3.bias"}


def test_nested_chains_shared_activations_and_options() -> None:
    act = nn.LeakyReLU(0.2)
    chain = nn.Sequential(nn.Sequential(nn.Linear(2, 3, bias=False), act), act, nn.GELU("tanh"), nn.Linear(3, 1))
    assert traits(chain).dense == (
        Step("linear", "0.0.weight"),
        Step("leaky_relu", slope=0.2),
        Step("leaky_relu", slope=0.2),
        Step("gelu", approximate="tanh"),
        Step("linear", "3.weight", "3.bias"),
    )
    assert traits(nn.Linear(2, 1)).dense == (Step("linear", "weight", "bias"),)


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    return module


def tied() -> nn.Module:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked() -> nn.Module:
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda module, inputs, output: output * 2)
    return nn.Sequential(layer)


class Doubled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "module",
    [
        frozen(),
        tied(),
        hooked(),
        nn.Sequential(Doubled(2, 2)),
        nn.Sequential(spectral_norm(nn.Linear(2, 2))),
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)),
        nn.Sequential(nn.Flatten(0), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(), nn.Linear(6, 2)),
        nn.Sequential(nn.ReLU()),
        nn.Sequential(nn.Conv2d(1, 1, 1)),
    ],
)
def test_what_only_looks_like_a_dense_chain_is_none(module: nn.Module) -> None:
    assert traits(module).dense is None


class Counter(nn.Module):
    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()), persistent=persistent)


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.BatchNorm1d(2), True),
        (nn.BatchNorm2d(2, track_running_stats=False), False),
        (nn.InstanceNorm1d(2, track_running_stats=True), True),
        (nn.InstanceNorm1d(2), False),
        (nn.GroupNorm(1, 2), False),
        (spectral_norm(nn.Linear(2, 2)), True),
        (Counter(persistent=True), True),
        (Counter(persistent=False), False),
    ],
)
def test_has_batchnorm_means_buffers_that_training_updates(module: nn.Module, expected: bool) -> None:
    assert traits(nn.Sequential(module)).has_batchnorm is expected


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Dropout(0.1), True),
        (nn.Dropout(0.0), False),
        (nn.AlphaDropout(0.1), True),
        (nn.RReLU(), True),
        (nn.LSTM(2, 2, 2, dropout=0.1), True),
        (nn.LSTM(2, 2, 2), False),
        (nn.MultiheadAttention(2, 1, dropout=0.1), True),
        (nn.MultiheadAttention(2, 1), False),
        (nn.FractionalMaxPool2d(2, output_ratio=0.5), True),
        (nn.BatchNorm1d(2), False),
    ],
)
def test_has_randomness(module: nn.Module, expected: bool) -> None:
    assert traits(nn.Sequential(module)).has_randomness is expected


def test_traits_of_the_registered_models() -> None:
    def of(spec: models.ModelSpec, shape: tuple[int, ...]) -> models.Traits:
        return traits(models.build_module(spec, shape, 4, Key(0)))

    assert of(models.linear(bias=False), (3,)).dense == (Step("flatten"), Step("linear", "1.weight"))
    assert of(models.cnn001(), (1, 28, 28)) == models.Traits(False, True, None, False)
    assert of(models.cnn001(dropout=(0, 0)), (1, 28, 28)) == models.Traits(False, False, None, False)
    assert of(models.cnn002(), (1, 28, 28)) == models.Traits(False, False, None, False)
    assert of(models.resnet20(), (3, 8, 8)) == models.Traits(True, False, None, False)
    assert of(models.resnet20(norm="group"), (3, 8, 8)) == models.Traits(False, False, None, False)
    assert of(models.lstm(hidden=4), (5,)) == models.Traits(False, False, None, True)
    assert of(models.text_bag(10, 4), (5,)) == models.Traits(False, False, None, False)
