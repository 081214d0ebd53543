"""Augmentation as a layer: random crops and flips in training, the centre crop in evaluation."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RandomCrop(nn.Module):
    """[B, C, H, W] -> [B, C, size, size], mirrored with chance 1/2, each image then scaled to mean 0 and deviation 1.

    As Charles and Konečný (E.1) and Reddi et al. (2021) prepare CIFAR-100. In evaluation mode the crop is the centre's
    and nothing is mirrored.
    """

    draws: ClassVar[bool] = True

    def __init__(self, size: int, padding: int = 0, standardise: bool = True) -> None:
        """`padding`: zeros around the image before it is cropped; without `standardise` pixels stay as they are."""
        super().__init__()
        self.size, self.padding, self.standardise = size, padding, standardise

    def forward(self, x: Tensor) -> Tensor:
        """Crop, mirror, standardise."""
        cropped = self._cropped(F.pad(x, (self.padding,) * 4) if self.padding else x)
        return _standardised(cropped) if self.standardise else cropped

    def _cropped(self, x: Tensor) -> Tensor:
        height, width = x.shape[2] - self.size, x.shape[3] - self.size
        if not self.training:
            return x[:, :, height // 2 :, width // 2 :][:, :, : self.size, : self.size]
        top, left = (torch.randint(extra + 1, (len(x), 1)) for extra in (height, width))
        span = torch.arange(self.size)
        mirrored = torch.rand(len(x), 1) < 0.5
        rows, columns = top + span, left + torch.where(mirrored, span.flip(0), span)
        picked = x[torch.arange(len(x))[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        return picked.permute(0, 3, 1, 2)

    def extra_repr(self) -> str:
        return str(self.size) if not self.padding and self.standardise else f"{self.size}, padding={self.padding}"


def _standardised(x: Tensor) -> Tensor:
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    deviation = x.std(dim=(1, 2, 3), keepdim=True, correction=0)
    return (x - mean) / deviation.clamp_min(x[0].numel() ** -0.5)
