"""Typer 0.20 imports names that click 8.5 deprecates, and warnings are errors in tests."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer  # noqa: F401
