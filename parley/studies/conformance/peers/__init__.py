"""Other libraries' own trainers on the same quadratics, each in its own environment (docs/conformance.md).

    from parley.bench.environments import install
    from parley.studies.conformance.peers import compare
    for row in compare(lambda library: install(library.name), "scaffold"):
        print(row.library, row.version, row.verdict, row.distance)

`parley conformance --peers` prints the same.
"""

from parley.studies.conformance.peers.printed import peers_table
from parley.studies.conformance.peers.roster import LIBRARIES, Library
from parley.studies.conformance.peers.run import compare, fill, planned_peers, record
from parley.studies.conformance.peers.setting import METHODS, SETTINGS
from parley.studies.conformance.peers.verdict import TOLERANCE, Row, judge

__all__ = [
    "LIBRARIES",
    "METHODS",
    "SETTINGS",
    "TOLERANCE",
    "Library",
    "Row",
    "compare",
    "fill",
    "judge",
    "peers_table",
    "planned_peers",
    "record",
]
