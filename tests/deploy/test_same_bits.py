"""Three nodes, Flower and TLS between them, give the bits of `inline`: every kind of method, as real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.deploy.demo import HOSPITALS

from .processes import Bench, federation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

METHODS: dict[str, dict[str, object]] = {
    "FedAvg": {"name": "fedavg", "lr": 0.1, "steps": 4, "batch": 7},
    "FedAvg that keeps Adam's moments": {"name": "fedavg", "lr": 0.1, "steps": 4, "optimizer": "adam", "keep": True},
    "SCAFFOLD": {"name": "scaffold", "lr": 0.1, "steps": 4, "batch": 7},
    "FedALS": {"name": "fedals", "lr": 0.1, "steps": 4, "alpha": 2},
    "FFGB with trees": {"name": "ffgb", "steps": 2, "learner": {"name": "tree", "depth": 3}},
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with federation(tmp_path_factory.mktemp("federation"), "server", *HOSPITALS) as made:
        yield made


@pytest.mark.parametrize("method", METHODS)
def test_a_method_gives_the_bits_of_inline(bench: Bench, method: str):
    table = bench.table(algorithm=METHODS[method])
    if method.startswith("FFGB"):
        del table["model"]  # the ensemble is the model
    bench.same_as_inline(bench.ended(bench.submit(table)), table)


@pytest.mark.parametrize("upload", ["factored", "dense"])
def test_ntk_fl_sends_the_data_with_consent_and_then_gives_the_bits_of_inline(bench: Bench, upload: str):
    """The policy, which approves any method, does not approve this one; nor does an approval that is silent on it."""
    table = bench.table(algorithm={"name": "ntk-fl", "upload": upload, "times": [5, 20], "lr": 0.5})
    one = bench.submit(table)
    what = "discloses samples' inputs and labels"
    bench.reaches(one, f"its owner has not approved study {one.hash[:12]} (by policy it may not: 'ntk-fl' {what}).")
    bench.reaches(one, "south its owner has not approved")
    bench.nodes["south"].decide(one.hash, "approved")
    bench.reaches(one, f"south its owner approved study {one.hash[:12]}, but not that it {what}.")
    bench.submissions.ask_to_stop(one.id)
    assert bench.ended(one).run is None
    for node in bench.nodes.values():
        assert not node.run(one.run_name).exists()
        node.decide(one.hash, "approved", disclose=True)
    done = bench.ended(bench.submit(table))
    assert done.enrolled.keys() == bench.nodes.keys(), bench.said(one)
    bench.same_as_inline(done, table)
