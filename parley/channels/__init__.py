"""What happens to a message on the way, composed with `|`. A channel is imported when its name is asked for."""

from parley.channels.base import Arrival, Chain, Channel, Channels, channel, channels

__all__ = ["Arrival", "Chain", "Channel", "Channels", "channel", "channels"]

_HOMES = {
    "parley.channels.ef21": "ef21",
    "parley.channels.projection": "projection",
    "parley.channels.quantise": "fedcom fedpaq qsgd",
    "parley.channels.random_k": "random-k",
    "parley.channels.shuffle": "shuffle",
    "parley.channels.sign": "sign",
    "parley.channels.top_k": "top-k",
    "parley.privacy.adaptive_clip": "adaptive-clip",
    "parley.privacy.clip": "clip",
    "parley.privacy.noise": "noise",
    "parley.secure.channel": "secure-sum",
}
channels.homes |= {name: module for module, names in _HOMES.items() for name in names.split()}
