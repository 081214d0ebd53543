"""Other libraries' own trainers on the same quadratics, each in its own environment (docs/conformance.md).

    from parley_benchmarks.environments import install
    from parley_benchmarks.peers import compare
    for row in compare(lambda library: install(library.name), "scaffold"):
        print(row.library, row.version, row.verdict, row.distance)

`parley conformance --peers` prints the same.
"""

from parley_benchmarks.peers.printed import peers_table
from parley_benchmarks.peers.roster import LIBRARIES, Library
from parley_benchmarks.peers.run import compare, fill, planned_peers, record
from parley_benchmarks.peers.setting import METHODS, SETTINGS
from parley_benchmarks.peers.verdict import TOLERANCE, Row, judge

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
