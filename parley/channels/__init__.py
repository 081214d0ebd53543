"""What happens to a message on the way: one file per channel, composed with `|`. Importing this registers them."""

from parley.channels import adaptive_clip as _adaptive_clip
from parley.channels import clip as _clip
from parley.channels import noise as _noise
from parley.channels import top_k as _top_k
from parley.channels.base import Chain, Channel, Channels, channel, channels

__all__ = ["Chain", "Channel", "Channels", "channel", "channels"]
del _adaptive_clip, _clip, _noise, _top_k
