"""Federated learning among clients that disagree."""
