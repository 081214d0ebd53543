"""Side-by-side speed: Parley and its peers on the same work, on the same cores, in the same run."""

from parley.bench.against import Paired, against, paired_table
from parley.bench.record import record
from parley.bench.result import BenchResult, Claim, Standing
from parley.bench.run import bench, default_workloads
from parley.bench.table import table
from parley.bench.workloads import WORKLOADS, Target, Workload, workload

__all__ = [
    "WORKLOADS",
    "BenchResult",
    "Claim",
    "Paired",
    "Standing",
    "Target",
    "Workload",
    "against",
    "bench",
    "default_workloads",
    "paired_table",
    "record",
    "table",
    "workload",
]
