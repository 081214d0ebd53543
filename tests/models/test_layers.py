"""Layers of a module: what counts as one and what belongs to it."""

import pytest
from torch import nn

from parley.core.key import Key
from parley.models import build_module, cnn002, linear, mlp, resnet20
from parley.models.layers import layers


@pytest.mark.parametrize("shortcut", ["conv3x3", "conv1x1", "pad"])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet20_has_twenty_layers(shortcut, norm):
    module = build_module(resnet20(shortcut=shortcut, norm=norm), (3, 32, 32), 10, Key(0))
    found = layers(module)
    blocks = [f"blocks.{number}.{which}" for number in range(9) for which in ("first", "second")]
    assert [layer.name for layer in found] == ["stem", *blocks, "head"]
    assert [n for layer in found for n in layer.parameters] == [n for n, _ in module.named_parameters()]
    assert [n for layer in found for n in layer.buffers] == [n for n, _ in module.named_buffers()]


@pytest.mark.parametrize(("spec", "count"), [(mlp(20, 10), 3), (cnn002(), 5), (linear(), 1)])
def test_dense_and_convolutional_networks(spec, count):
    module = build_module(spec, (1, 28, 28), 10, Key(0))
    assert len(layers(module)) == count


def test_norms_join_and_frozen_parameters_are_left_out():
    module = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2), nn.BatchNorm1d(2))
    assert [layer.parameters for layer in layers(module)] == [
        ("0.weight", "0.bias"),
        ("1.weight", "1.bias", "2.weight", "2.bias"),
        ("3.weight", "3.bias", "4.weight", "4.bias"),
    ]
    module[1].requires_grad_(False)
    assert [layer.parameters for layer in layers(module)] == [
        ("0.weight", "0.bias", "2.weight", "2.bias"),
        ("3.weight", "3.bias", "4.weight", "4.bias"),
    ]


def test_shared_and_nameless_modules():
    line = nn.Linear(3, 3)
    assert len(layers(nn.Sequential(line, nn.ReLU(), line))) == 1
    assert [layer.name for layer in layers(line)] == ["model"]
    assert layers(nn.ReLU()) == ()
