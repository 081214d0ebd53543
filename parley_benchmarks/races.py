"""Side-by-side speed: Parley and its peers on the same work, on the same cores, in the same run."""

from parley_benchmarks.against import Paired, against, paired_table
from parley_benchmarks.record import record, recorded
from parley_benchmarks.result import BenchResult, Claim, Standing
from parley_benchmarks.run import bench, default_workloads
from parley_benchmarks.table import table
from parley_benchmarks.workloads import WORKLOADS, Target, Workload, workload

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
    "recorded",
    "table",
    "workload",
]
