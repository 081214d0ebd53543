"""The data sets Parley knows by name."""
