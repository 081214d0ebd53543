"""Who takes part in a race, in which arrangement of processes and threads, and how each is started."""

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from parley import InputError
from parley.core.errors import nearest
from parley_benchmarks.workloads import Workload, available_cpus

ROOT = Path(__file__).parents[1]
"""The checkout (or the folder of packages) that this Parley is in."""
KEEP = str(2**30)


@dataclass(frozen=True)
class Entrant:
    """One contestant: its module under `contestants/` and how the cores are used."""

    name: str
    group: str
    module: str
    processes: int = 1
    threads: int = 1
    peer: str = ""
    """The environment it runs in; "" for the one that runs Parley."""
    variant: str = ""
    """Passed on to the contestant, which knows what it means."""
    comparable: bool = True
    """Whether it ends with global weights that must equal the others'."""
    root: Path = ROOT
    """The checkout whose contestants, and whose Parley, it runs."""

    def command(self, python: Path, work: Path, cores: int) -> list[str]:
        """The command line that starts it, confined to the first `cores` CPUs."""
        cpus = ",".join(map(str, available_cpus()[:cores]))
        arguments = [str(work), f"--threads={self.threads}", f"--processes={self.processes}", f"--cpus={cpus}"]
        arguments += [f"--variant={self.variant}"] if self.variant else []
        if self.module == "pfl" and self.processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.processes}"]
            return [str(python), *torchrun, "-m", "contestants.pfl", *arguments]
        return [str(python), "-m", f"contestants.{self.module}", *arguments]

    def environment(self) -> dict[str, str]:
        """Variables that hold its threads to the arrangement and keep it quiet and off the network."""
        threads = str(self.threads)
        # The bare loops are the yardstick of what the machine can do, so they alone are spared the page faults of an
        # allocator that gives memory back after every step.
        keep = {"MALLOC_TRIM_THRESHOLD_": KEEP, "MALLOC_MMAP_THRESHOLD_": KEEP} if self.module == "bare" else {}
        # Peers get the contestants only: what else lies beside Parley must not be found before their own packages.
        paths = [self.root / "parley_benchmarks", *([] if self.peer else [self.root])]
        return {
            **keep,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={str(self.threads > 1).lower()}",
            "JAX_PLATFORMS": "cpu",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }


def roster(workload: Workload) -> list[Entrant]:
    """Every contestant of a workload on its number of cores; pfl in each arrangement that fills them."""
    n = workload.cores
    everyone = {
        "parley": [Entrant("parley", "parley", "parley_", processes=n)],
        "parley stacked": [Entrant("parley stacked", "parley stacked", "parley_", processes=n, variant="stacked")],
        "parley ray": [Entrant("parley ray", "parley ray", "parley_", processes=n, variant="ray")],
        "plain": [Entrant("plain", "plain", "plain", threads=n)],
        "pfl": [Entrant(f"pfl {p}x{n // p}", "pfl", "pfl", p, n // p, peer="pfl") for p in sorted({1, n})],
        "flower": [Entrant("flower", "flower", "flower", processes=n, peer="flower")],
        "hand": [Entrant("hand", "hand", "hand", threads=n)],
        "jax": [Entrant("jax", "jax", "jax_", threads=n, peer="jax")],
        "jax resident": [Entrant("jax resident", "jax resident", "jax_", threads=n, peer="jax", variant="resident")],
        "bare": [Entrant("bare", "bare", "bare", processes=n, comparable=False)],
    }
    return [entry for group in workload.groups for entry in everyone[group]]


def chosen(entries: Iterable[Entrant], names: Iterable[str]) -> list[Entrant]:
    """The entries whose name or group is among `names`."""
    entries, names = list(entries), list(names)
    known = {e.name for e in entries} | {e.group for e in entries}
    for name in names:
        if name not in known:
            raise InputError(f"unknown contestant '{name}': {nearest(name, known)}")
    return [e for e in entries if e.name in names or e.group in names]


def own_python() -> Path:
    """The interpreter of the contestants that need no peer."""
    return Path(sys.executable)
