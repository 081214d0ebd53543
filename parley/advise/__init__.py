"""What to do with this federation: curvature, heterogeneity, federation gain, frontier, and a recommendation."""

from parley.core.rooms import make_callable

make_callable(__name__, "parley.advise.plan.make:advise")
