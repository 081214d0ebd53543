"""Regression and survival analysis with inference: what statisticians fit on pooled tables, from clients' sums."""

from parley.core.rooms import make_callable

make_callable(__name__, "parley.analyse.run:analyse")
