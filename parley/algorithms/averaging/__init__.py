"""The LocalUpdate family and its baselines: local SGD, averaged."""
