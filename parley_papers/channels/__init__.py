"""Channels: what compression costs in accuracy and saves in megabytes."""
