"""Arrays by name from .npz and .safetensors files, their headers checked before anything is allocated."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from parley.core.errors import InputError
from parley.core.text import shown
from parley.data.local.bounds import check_expansion, parsed


def read_arrays(file: Path, *names: str) -> list[NDArray[Any] | Tensor]:
    """The arrays of these names, each with one row per sample."""
    title = f"'{shown(file)}'"
    with parsed(title, file.suffix):
        arrays = _from_safetensors(file, names) if file.suffix.lower() == ".safetensors" else _from_npz(file, names)
    for name, values in zip(names, arrays, strict=True):
        if values.ndim == 0:
            raise InputError(f"the array '{name}' of {title} is a single number; it needs one row per sample.")
    return arrays


def _from_npz(file: Path, names: tuple[str, ...]) -> list[NDArray[Any] | Tensor]:
    title = f"'{shown(file)}'"
    with zipfile.ZipFile(file) as archive:
        _refuse_missing(title, names, {name.removesuffix(".npy") for name in archive.namelist()})
        members = [archive.getinfo(f"{name}.npy") for name in names]
        check_expansion(sum(member.file_size for member in members), file.stat().st_size, title)
        arrays: list[NDArray[Any] | Tensor] = []
        for member in members:
            with archive.open(member) as stream:
                arrays.append(_read_npy(stream, member.file_size))
        return arrays


def _refuse_missing(title: str, names: tuple[str, ...], present: set[str]) -> None:
    missing = next((name for name in names if name not in present), None)
    if missing is not None:
        wanted = " and ".join(f"'{name}'" for name in names)
        raise InputError(f"{title} lacks the array '{missing}'; it must hold {wanted}.")


def _read_npy(stream: IO[bytes], size: int) -> NDArray[Any]:
    """One array; its header must tell what follows it, because NumPy allocates by it."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"arrays of npy version {version[0]} are not read")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, columns_first, kind = read_header(stream)
    if kind.hasobject:
        raise ValueError("it holds Python objects, which are not unpickled")
    header = stream.tell()
    wanted = math.prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or wanted != size - header:
        raise ValueError(f"its header says {wanted} bytes, but {size - header} follow")
    values = np.frombuffer(stream.read(), kind) if wanted else np.empty(0, kind)
    return values.reshape(shape[::-1]).T if columns_first else values.reshape(shape)


def _from_safetensors(file: Path, names: tuple[str, ...]) -> list[NDArray[Any] | Tensor]:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as tensors:
        _refuse_missing(f"'{shown(file)}'", names, set(tensors.keys()))
        return [torch.as_tensor(tensors.get_tensor(name)) for name in names]
