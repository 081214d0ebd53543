"""The networks themselves: parameter counts derived by hand, starting weights, and what each layer computes."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from parley import models
from parley.core.errors import InputError
from parley.core.key import Key


def build(spec: models.ModelSpec, shape: tuple[int, ...], outputs: int) -> nn.Module:
    return models.build_module(spec, shape, outputs, Key(0))


def conv(size: int, inputs: int, outputs: int) -> int:
    return size * size * inputs * outputs + outputs


def dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def lstm_layer(inputs: int, hidden: int) -> int:
    return 4 * hidden * (inputs + hidden + 2)  # torch keeps two bias vectors


RESNET18 = ((64, 64), (64, 128), (128, 256), (256, 512))
"""Channels into and in each stage."""


def residual(shortcuts: int) -> int:
    """ResNet-20 for CIFAR-10: bias-free 3x3 convolutions, two numbers per channel for each normalisation."""
    stem = 9 * 3 * 16 + 2 * 16
    stages = sum(9 * (a * c + 5 * c * c) + 6 * 2 * c for a, c in ((16, 16), (16, 32), (32, 64)))
    return stem + stages + shortcuts + dense(64, 10)


@pytest.mark.parametrize(
    ("spec", "shape", "outputs", "count", "published"),
    [
        (models.linear(), (1, 28, 28), 10, dense(784, 10), 7_850),
        (models.linear(bias=False), (1, 28, 28), 10, 784 * 10, 7_840),
        (models.mlp(100), (1, 28, 28), 10, dense(784, 100) + dense(100, 10), 79_510),
        (
            models.cnn001(),
            (1, 28, 28),
            62,
            conv(3, 1, 32) + conv(3, 32, 64) + dense(64 * 12 * 12, 128) + dense(128, 62),
            1_206_590,
        ),
        (
            models.cifar10_cnn(),
            (3, 32, 32),
            10,
            conv(3, 3, 32) + conv(3, 32, 64) + dense(64 * 14 * 14, 128) + dense(128, 10),
            1_626_442,
        ),
        (
            models.cnn002(),
            (3, 32, 32),
            10,
            conv(5, 3, 64) + conv(5, 64, 64) + dense(64 * 5 * 5, 384) + dense(384, 192) + dense(192, 10),
            797_962,
        ),
        (
            models.cnn002(),
            (1, 28, 28),
            10,
            conv(5, 1, 64) + conv(5, 64, 64) + dense(64 * 4 * 4, 120) + dense(120, 84) + dense(84, 10),
            238_142,
        ),
        (models.resnet20(), (3, 32, 32), 10, residual(9 * 16 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64), 292_954),
        (
            models.resnet20(norm="group"),
            (3, 32, 32),
            10,
            residual(9 * 16 * 32 + 2 * 32 + 9 * 32 * 64 + 2 * 64),
            292_954,
        ),
        (models.resnet20(shortcut="conv1x1"), (3, 32, 32), 10, residual(16 * 32 + 2 * 32 + 32 * 64 + 2 * 64), 272_474),
        (models.resnet20(shortcut="pad"), (3, 32, 32), 10, residual(0), 269_722),
        (
            models.resnet18(crop=24),
            (3, 32, 32),
            100,
            9 * 3 * 64
            + 2 * 64
            + sum(9 * (a * c + 3 * c * c) + 8 * c + (a != c) * (a * c + 2 * c) for a, c in RESNET18)
            + dense(512, 100),
            11_220_132,
        ),
        (models.lstm(), (80,), 90, 90 * 8 + lstm_layer(8, 256) + lstm_layer(256, 256) + dense(256, 90), 822_570),
        (models.text_bag(1000, 16), (20,), 3, 1000 * 16 + dense(16, 3), 16_051),
    ],
)
def test_parameter_counts(
    spec: models.ModelSpec, shape: tuple[int, ...], outputs: int, count: int, published: int
) -> None:
    assert sum(parameter.numel() for parameter in build(spec, shape, outputs).parameters()) == count == published


def test_kaiming_start_has_variance_two_over_fan_in_and_zero_biases() -> None:
    module = build(models.mlp(1000), (500,), 500)
    for layer, fan_in in ((module[1], 500), (module[3], 1000)):
        assert layer.bias.abs().max() == 0
        # The sample variance of 500,000 normal numbers is within 1% with overwhelming probability (5 sigma).
        assert layer.weight.var().item() == pytest.approx(2 / fan_in, rel=0.01)


def test_torch_start_is_torchs_own() -> None:
    weight = build(models.mlp(100, init="torch"), (400,), 2)[1].weight
    assert weight.abs().max() <= 1 / 20
    assert weight.abs().max() > 0.9 / 20


def test_zero_start_of_linear() -> None:
    module = build(models.linear(zero=True), (4,), 3)
    assert module(torch.ones(2, 4)).abs().max() == 0


def test_glorot_start_is_bounded_by_its_fans() -> None:
    module = build(models.cnn001(), (1, 28, 28), 10)
    weight, bias = module[2].weight, module[2].bias
    bound = (6 / (9 * 32 + 9 * 64)) ** 0.5
    assert 0.99 * bound < weight.abs().max() <= bound
    assert bias.abs().max() == 0


def test_cnn_dropout_acts_in_training_only() -> None:
    module, x = build(models.cnn001(), (1, 8, 8), 3), torch.randn(4, 1, 8, 8, generator=Key(1).torch())
    with torch.random.fork_rng(devices=[]):
        assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))


def test_cnn002_uses_leaky_units_of_the_given_slope() -> None:
    module = build(models.cnn002(slope=0.3, hidden=(7,)), (1, 16, 16), 2)
    slopes = [layer.negative_slope for layer in module.modules() if isinstance(layer, nn.LeakyReLU)]
    assert slopes == [0.3, 0.3, 0.3]


def test_resnet20_has_twenty_weight_layers_named_in_forward_order() -> None:
    module = build(models.resnet20(), (3, 32, 32), 10)
    order = []
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(lambda *_, name=name: order.append(name.removesuffix(".conv")))
    module(torch.zeros(2, 3, 32, 32))
    blocks = [f"blocks.{block}.{part}" for block in range(9) for part in ("first", "second")]
    assert [name for name in order if "shortcut" not in name] == ["stem", *blocks, "head"]
    assert sorted(set(order) - {"stem", "head", *blocks}) == ["blocks.3.shortcut", "blocks.6.shortcut"]


def test_pad_shortcut_is_subsampling_with_zero_channels() -> None:
    block = build(models.resnet20(shortcut="pad"), (1, 8, 8), 2).blocks[3]
    x = torch.randn(2, 16, 5, 8, generator=Key(2).torch())
    y = block.shortcut(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert y[:, :8].abs().max() == 0
    assert y[:, 24:].abs().max() == 0
    with torch.no_grad():
        block.second.norm.weight.zero_()
    assert torch.equal(block(x), F.relu(y))


def test_group_norm_treats_samples_alone_and_has_no_buffers() -> None:
    module = build(models.resnet20(norm="group", groups=4), (1, 12, 12), 3)
    assert not list(module.buffers())
    x = torch.randn(3, 1, 12, 12, generator=Key(3).torch())
    torch.testing.assert_close(module(x)[1:2], module(x[1:2]), rtol=1e-4, atol=1e-5)


def test_resnet18_halves_the_image_three_times_and_has_eighteen_weight_layers() -> None:
    module = build(models.resnet18(), (1, 16, 16), 3)
    layers = [name for name, layer in module.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len([name for name in layers if "shortcut" not in name]) == 18
    assert module.blocks(module.stem(torch.zeros(1, 1, 16, 16))).shape == (1, 512, 2, 2)
    assert not list(module.buffers())


def test_crops_are_windows_of_the_image_mirrored_or_not() -> None:
    crop = build(models.resnet18(crop=8), (2, 11, 12), 3).crop
    x = torch.randn(60, 2, 11, 12, generator=Key(5).torch())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        y = crop(x)
    found = set()
    for image, seen in zip(x, y, strict=True):
        assert seen.mean().item() == pytest.approx(0, abs=1e-6)
        assert seen.std(correction=0).item() == pytest.approx(1, abs=1e-5)
        for top in range(4):
            for left in range(5):
                window = image[:, top : top + 8, left : left + 8]
                window = (window - window.mean()) / window.std(correction=0)
                for mirrored in (False, True):
                    if torch.allclose(window.flip(2) if mirrored else window, seen, atol=1e-5):
                        found.add((top, left, mirrored))
    assert len({place[:2] for place in found}) > 15  # of 20 places
    assert {place[2] for place in found} == {False, True}
    crop.eval()
    centre = x[:1, :, 1:9, 2:10]
    torch.testing.assert_close(crop(x[:1]), (centre - centre.mean()) / centre.std(correction=0))
    assert models.traits(build(models.resnet18(crop=8), (2, 11, 12), 3)).has_randomness
    assert not models.traits(build(models.resnet18(), (2, 11, 12), 3)).has_randomness


@pytest.mark.parametrize("wrong", [{"groups": 3}, {"groups": 0}, {"crop": 4}, {"crop": -1}])
def test_resnet18_refuses(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="resnet18"):
        models.resnet18(**wrong)


def test_lstm_predicts_each_position_from_its_past() -> None:
    last, every = (build(models.lstm(hidden=6, every=every), (5,), 9) for every in (False, True))
    tokens = torch.randint(0, 9, (4, 5), generator=Key(4).torch())
    assert every(tokens).shape == (4, 9, 5)
    for length in range(1, 6):
        torch.testing.assert_close(every(tokens)[:, :, length - 1], last(tokens[:, :length]))
    F.cross_entropy(every(tokens), tokens).backward()


def test_lstm_takes_a_vocabulary_other_than_its_outputs() -> None:
    module = build(models.lstm(hidden=6, vocabulary=50), (5,), 2)
    assert module(torch.full((1, 5), 49)).shape == (1, 2)


def test_text_bag_is_the_mean_of_embeddings_without_padding() -> None:
    module = build(models.text_bag(vocabulary=10, embedding=4), (5,), 3)
    table, head = module.embed.weight, module.head
    output = module(torch.tensor([[3, 7, 7, 0, 0], [0, 0, 0, 0, 0]]))
    torch.testing.assert_close(output[0], head((table[3] + 2 * table[7]) / 3))
    torch.testing.assert_close(output[1], head.bias)
    output.sum().backward()
    assert table.grad[0].abs().max() == 0
