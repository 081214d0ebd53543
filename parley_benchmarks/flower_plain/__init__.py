"""Federated averaging as a Flower application without Parley, which FLOWER-ROUND is measured against."""
