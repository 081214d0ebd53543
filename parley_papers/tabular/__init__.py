"""Boosted trees on tables: against pooled training, and against the methods that send whole trees."""
