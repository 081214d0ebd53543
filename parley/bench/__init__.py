"""Side-by-side speed: Parley and its peers on the same work, on the same cores, in the same run."""

from parley.bench.result import Check, Result, Standing
from parley.bench.run import bench
from parley.bench.table import table
from parley.bench.workloads import WORKLOADS, Target, Workload, workload

__all__ = ["WORKLOADS", "Check", "Result", "Standing", "Target", "Workload", "bench", "table", "workload"]
