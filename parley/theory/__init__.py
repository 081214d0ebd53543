"""What theory says before any training: pure functions on NumPy arrays in float64, no torch."""
