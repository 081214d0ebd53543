"""Histogram boosting and forests."""
