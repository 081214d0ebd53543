"""What happens to a message on the way: one file per channel, composed with `|`. Importing this registers them."""

from importlib import import_module as _import_module
from pkgutil import iter_modules as _iter_modules

from parley.channels.base import Arrival, Chain, Channel, Channels, channel, channels

__all__ = ["Arrival", "Chain", "Channel", "Channels", "channel", "channels"]

for _module in _iter_modules(__path__):
    _import_module(f"{__name__}.{_module.name}")
