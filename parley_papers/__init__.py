"""The five papers' figures and tables and other studies, run by `parley reproduce` and judged by their checks.

The laboratory: written against the public names of `parley` alone.
"""
