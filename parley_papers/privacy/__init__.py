"""What differential privacy costs in accuracy."""
