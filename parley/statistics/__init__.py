"""Federated statistics of tables: what a client counts, and what is agreed from it."""

from parley.core.rooms import make_callable

make_callable(__name__, "parley.statistics.run:statistics")
