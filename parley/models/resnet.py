"""ResNets for small images (He et al., 2016), with the variants federated learning needs.

Every convolution sits in one `ConvNorm` together with its normalisation, so the names of a layer's parameters and
buffers share a prefix, in the order of the forward pass: `stem`, `blocks.0.first`, `blocks.0.second`, ...,
`head`, and `blocks.3.shortcut`, ... where shortcuts have weights.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from parley.core.errors import InputError
from parley.models.crops import RandomCrop
from parley.models.spec import check_choice, check_image, check_positive, models

Norm = Literal["batch", "group"]
Shortcut = Literal["conv3x3", "pad", "conv1x1"]


class ConvNorm(nn.Sequential):
    """A convolution without bias, padded to keep the size at stride 1, and its normalisation."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module], size: int = 3, stride: int = 1):
        conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        nn.init.kaiming_normal_(conv.weight)
        super().__init__(OrderedDict(conv=conv, norm=norm(outputs)))


class Subsample(nn.Module):
    """The parameter-free shortcut (option A of He et al.): every second pixel, new channels filled with zeros."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.extra = extra

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C + extra, H/2, W/2], rounded up."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module], shortcut: Shortcut):
        super().__init__()
        self.first = ConvNorm(inputs, outputs, norm, stride=stride)
        self.second = ConvNorm(outputs, outputs, norm)
        self.shortcut: nn.Module = nn.Identity()
        if inputs != outputs and shortcut == "pad":
            self.shortcut = Subsample(outputs - inputs)
        elif inputs != outputs:
            self.shortcut = ConvNorm(inputs, outputs, norm, size=3 if shortcut == "conv3x3" else 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """relu(shortcut(x) + second(relu(first(x))))."""
        return F.relu(self.second(F.relu(self.first(x))) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, a chain of blocks, the mean over pixels and a dense head."""

    def __init__(self, stem: nn.Module, blocks: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.stem = stem
        self.blocks = blocks
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] images to [B, outputs]."""
        features = self.blocks(F.relu(self.stem(x)))
        return self.head(features.mean(dim=(2, 3)))  # type: ignore[no-any-return]


@models("resnet20")
@dataclass(frozen=True)
class ResNet20:
    """ResNet-20; with the defaults Gholami and Seferoglu's, 292,954 trainable parameters on CIFAR-10."""

    norm: Norm = "batch"
    """'batch' keeps running statistics that need a buffer policy; 'group' has no buffers and treats samples alone."""
    groups: int = 8
    """Number of channel groups of group normalisation; must divide 16."""
    shortcut: Shortcut = "conv3x3"
    """Where width changes: 'conv3x3' (Gholami and Seferoglu), 'conv1x1' with normalisation or 'pad' without weights."""

    def __post_init__(self) -> None:
        check_choice("resnet20", "norm", self.norm, get_args(Norm))
        check_choice("resnet20", "shortcut", self.shortcut, get_args(Shortcut))
        check_positive("resnet20", "groups", self.groups)
        if 16 % self.groups:
            raise InputError(f"groups of model 'resnet20' must divide 16, its narrowest width, but is {self.groups}.")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Three stages of three blocks, 16, 32 and 64 channels wide; the second and third halve the image."""
        check_image("resnet20", shape, smallest=4)
        return ResNet(*_parts(shape[0], (16, 32, 64), 3, self._normalise, self.shortcut), nn.Linear(64, outputs))

    def _normalise(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(self.groups, channels)


@models("resnet18")
@dataclass(frozen=True)
class ResNet18:
    """ResNet-18 with group normalisation, Charles and Konečný's CIFAR-100 network (Reddi et al., 2021), 3x3 stem."""

    groups: int = 2
    """Number of channel groups of group normalisation; must divide 64."""
    crop: int = 0
    """Side of random crops in training, mirrored at random, and of the centre crop in evaluation, each standardised (24
    in Charles and Konečný); 0 takes images as they are."""

    def __post_init__(self) -> None:
        check_positive("resnet18", "groups", self.groups)
        if 64 % self.groups:
            raise InputError(f"groups of model 'resnet18' must divide 64, its narrowest width, but is {self.groups}.")
        if self.crop < 0 or 0 < self.crop < 8:
            raise InputError(f"crop of model 'resnet18' must be at least 8, or 0 for none, not {self.crop}.")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Four stages of two blocks, 64, 128, 256 and 512 channels wide; each but the first halves the image."""
        check_image("resnet18", shape, smallest=max(8, self.crop))
        parts = _parts(shape[0], (64, 128, 256, 512), 2, lambda c: nn.GroupNorm(self.groups, c), "conv1x1")
        network = ResNet(*parts, nn.Linear(512, outputs))
        return nn.Sequential(OrderedDict(crop=RandomCrop(self.crop), network=network)) if self.crop else network


def _parts(
    inputs: int, widths: tuple[int, ...], depth: int, norm: Callable[[int], nn.Module], shortcut: Shortcut
) -> tuple[nn.Module, nn.Module]:
    """The stem and the blocks, `depth` of each width; the first block of each stage but the first has stride 2."""
    stem, blocks = ConvNorm(inputs, widths[0], norm), nn.Sequential()
    before = widths[0]
    for stage, channels in enumerate(widths):
        for number in range(depth):
            blocks.append(Block(before, channels, 2 if stage and not number else 1, norm, shortcut))
            before = channels
    return stem, blocks
