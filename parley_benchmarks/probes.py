"""Measurements of Parley alone, beside the races: name -> function that measures and judges."""

from collections.abc import Callable

from parley_benchmarks import (
    boost_cost,
    channel_cost,
    flower_round,
    many_memories,
    method_cost,
    ntk_round,
    ray_gain,
    start_cost,
    step_cost,
    tune_gain,
)
from parley_benchmarks.result import BenchResult
from parley_benchmarks.workloads import BenchScale

PROBES: dict[str, Callable[[BenchScale, int | None, int, Callable[[str], None]], BenchResult]] = {
    step_cost.NAME: step_cost.measure,
    channel_cost.NAME: channel_cost.measure,
    method_cost.NAME: method_cost.measure,
    method_cost.CROWDS: method_cost.measure_crowds,
    boost_cost.NAME: boost_cost.measure,
    start_cost.NAME: start_cost.measure,
    many_memories.NAME: many_memories.measure,
    ntk_round.NAME: ntk_round.measure,
    ray_gain.NAME: ray_gain.measure,
    tune_gain.NAME: tune_gain.measure,
    flower_round.NAME: flower_round.measure,
}
ON_REQUEST = (many_memories.NAME, flower_round.NAME)
"""Those that need tens of gigabytes of disk, or an extra (Flower), run only when they are named."""
