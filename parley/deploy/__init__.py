"""A federation of machines: certificates, keys, consent and supervision around Flower, which carries the messages."""
