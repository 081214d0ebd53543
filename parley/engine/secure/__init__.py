"""Secure sums at the server: the four exchanges of one, and what a method may read of it."""
