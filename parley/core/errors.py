"""Errors a user can act on. The command line prints their one sentence and exits with code 2."""

from collections.abc import Iterable
from difflib import get_close_matches


class ParleyError(Exception):
    """Base of all errors Parley raises on purpose; its text is one sentence: what, where, what to do."""


class InputError(ParleyError):
    """A configuration, argument, file or data set that cannot be used as it is."""


class ParleyWarning(UserWarning):
    """Something a user should know while the work goes on."""


class StopRun(Exception):
    """Raised by a listener to end a run well: what was done counts, and the run's status is `stopped`."""


class WireError(ParleyError):
    """Bytes that are not a well-formed message."""


class UnsupportedError(ParleyError):
    """A combination that this runtime, model or algorithm cannot do."""


class QuorumError(ParleyError):
    """Too few clients answered; the run stopped at its last checkpoint and can be resumed."""


def nearest(name: str, choices: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the closest valid choice, or all of them.

    >>> nearest("algoritm", ["algorithm", "data"])
    "did you mean 'algorithm'?"
    """
    valid = sorted(choices)
    close = get_close_matches(name, valid, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose one of {', '.join(valid)}." if valid else "there are no choices."
