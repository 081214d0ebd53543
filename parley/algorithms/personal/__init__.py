"""A model of each client's own."""
