"""Secure sums: the server learns the sum of what clients send and nothing else of it."""

from parley.secure.channel import SecureSum, secure_sum

__all__ = ["SecureSum", "secure_sum"]
