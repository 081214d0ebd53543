"""Messages, trees of tensors, keys, errors and the wire format: what every other room stands on."""

from parley.core.errors import nearest
from parley.core.files import write_atomically
from parley.core.text import printable

__all__ = ["nearest", "printable", "write_atomically"]
