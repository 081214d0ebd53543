"""Small convolutional networks of the federated learning literature, for [channels, height, width] images."""

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import nn

from parley.core.errors import InputError
from parley.models.spec import check_choice, check_image, check_positive, models

CnnInit = Literal["glorot", "torch"]


@dataclass(frozen=True)
class DropoutCnn:
    """Conv 3x3x32, conv 3x3x64, max-pool 2x2, dropout, dense 128, dropout, dense; ReLU and no padding throughout."""

    dropout: tuple[float, float] = (0.25, 0.5)
    """Drop probabilities after the pooling and after the dense layer; (0, 0) makes the forward pass deterministic."""
    init: CnnInit = "glorot"
    """Start: 'glorot' (uniform weights, zero biases, as Keras and the published results) or 'torch' (its default)."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "dropout", tuple(self.dropout))
        if len(self.dropout) != 2 or not all(0 <= p < 1 for p in self.dropout):
            raise InputError(f"dropout of model '{self.name}' must be two numbers in [0, 1), not {self.dropout}.")
        check_choice(self.name, "init", self.init, get_args(CnnInit))

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
        """Two unpadded convolutions shorten each side by 4, pooling halves it."""
        check_image(self.name, shape, smallest=6)
        channels, height, width = shape
        pooled = (height - 4) // 2 * ((width - 4) // 2)
        module = nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(self.dropout[0]),
            nn.Flatten(),
            nn.Linear(64 * pooled, 128),
            nn.ReLU(),
            nn.Dropout(self.dropout[1]),
            nn.Linear(128, outputs),
        )
        if self.init == "glorot":
            for layer in module:
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
        return module


@models("cnn001")
@dataclass(frozen=True)
class Cnn001(DropoutCnn):
    """Charles and Konečný's FEMNIST network (Section 6, Appendix E), the EMNIST CNN of Reddi et al. (2021)."""

    name = "cnn001"


@models("cifar10-cnn")
@dataclass(frozen=True)
class Cifar10Cnn(DropoutCnn):
    """The CIFAR-10 network of pfl-research's benchmark: 1,626,442 parameters on 3x32x32 images with 10 classes."""

    name = "cifar10-cnn"


@models("cnn002")
@dataclass(frozen=True)
class Cnn002:
    """Shen et al.'s network: twice (conv 5x5x64 without padding, leaky ReLU, max-pool 2x2), then dense layers."""

    hidden: tuple[int, ...] = ()
    """Widths of the dense layers; empty means the paper's: 120, 84 on 28x28 images, 384, 192 on others."""
    slope: float = 0.01
    """Slope of the leaky ReLU below zero; 0 gives the ReLU network of McMahan et al. and FedDyn."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))
        check_positive("cnn002", "each hidden width", *self.hidden)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Sequential:
        """Each convolution shortens a side by 4, each pooling halves it."""
        check_image("cnn002", shape, smallest=16)
        channels, height, width = shape
        pooled = ((height - 4) // 2 - 4) // 2 * (((width - 4) // 2 - 4) // 2)
        chain: list[nn.Module] = []
        for filters in (channels, 64):
            chain += [nn.Conv2d(filters, 64, 5), nn.LeakyReLU(self.slope), nn.MaxPool2d(2)]
        chain.append(nn.Flatten())
        features = 64 * pooled
        for hidden in self.hidden or ((120, 84) if (height, width) == (28, 28) else (384, 192)):
            chain += [nn.Linear(features, hidden), nn.LeakyReLU(self.slope)]
            features = hidden
        return nn.Sequential(*chain, nn.Linear(features, outputs))
