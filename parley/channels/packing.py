"""Small whole numbers in as few bits as they need: codes below 2^bits, eight of them in `bits` bytes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from parley.core.errors import WireError

_SHIFTS = {bits: torch.arange(0, 8 * bits, bits) for bits in range(1, 8)}


def packed_size(codes: int, bits: int) -> int:
    """Bytes that so many codes take."""
    return -(-codes * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 [n], each below 2^bits, as uint8 [packed_size(n, bits)]; the first code is in the lowest bits."""
    if bits == 8:
        return codes
    many = 8 // bits
    if many * bits == 8:  # a byte has a whole number of codes
        columns = pad(codes, (0, -len(codes) % many)).view(-1, many)
        packed = columns[:, 0].clone()
        for position in range(1, many):
            packed |= columns[:, position] << (bits * position)
        return packed
    words = (pad(codes, (0, -len(codes) % 8)).view(-1, 8).long() << _SHIFTS[bits]).sum(1)
    return words.view(torch.uint8).view(-1, 8)[:, :bits].reshape(-1)[: packed_size(len(codes), bits)]


def unpack(packed: Tensor, codes: int, bits: int, largest: int) -> Tensor:
    """The codes again; a WireError if one is above `largest`."""
    if bits == 8:
        unpacked = packed
    else:
        many = 8 // bits
        if many * bits == 8:
            unpacked = torch.stack([(packed >> (bits * position)) & (2**bits - 1) for position in range(many)], 1).view(
                -1
            )
        else:
            rows = pad(packed, (0, -len(packed) % bits)).view(-1, bits)
            words = pad(rows, (0, 8 - bits)).view(torch.int64)
            unpacked = ((words >> _SHIFTS[bits]) & (2**bits - 1)).to(torch.uint8).view(-1)
        unpacked = unpacked[:codes]
    if largest < 2**bits - 1 and len(unpacked) and int(unpacked.max()) > largest:
        raise WireError(f"it has a code above {largest}, the largest there is.")
    return unpacked
