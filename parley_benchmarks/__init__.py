"""Races against other frameworks and other libraries' conformance: `parley bench`, `parley conformance --peers`.

The laboratory: written against the public names of `parley` alone.
"""
