"""Least squares in a kernel's or a feature map's space (Su et al.)."""
