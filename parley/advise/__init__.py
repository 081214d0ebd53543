"""What to do with this federation: curvature, heterogeneity, federation gain, frontier, and a recommendation."""

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """The room itself can be called: `pl.advise(study)` is `parley.advise.plan.make.advise(study)`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from parley.advise.plan.make import advise

        return advise(*arguments, **options)


sys.modules[__name__].__class__ = _Room
