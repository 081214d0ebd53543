"""Modules of theory; `__init__.py` reads this file for where each name comes from."""

from parley.theory import advice as advice
from parley.theory import boosting as boosting
from parley.theory import condition as condition
from parley.theory import distance as distance
from parley.theory import exact_advice as exact_advice
from parley.theory import frontier as frontier
from parley.theory import gain as gain
from parley.theory import generalization as generalization
from parley.theory import heterogeneity as heterogeneity
from parley.theory import kernel as kernel
from parley.theory import pareto as pareto
from parley.theory import rounds as rounds
from parley.theory import servers as servers
from parley.theory import spectra as spectra
from parley.theory import surrogate as surrogate
