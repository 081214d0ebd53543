"""Real processes over TLS: secure sums among three hospitals, and CP-NTK-FL with a key server and a shuffler."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from parley.deploy.demo import HOSPITALS
from parley.deploy.node_folder import NodeFolder
from parley.study.stored import load_run

from .processes import Bench, federation, until

PARTIES = {"keys": "key server", "mixer": "shuffler"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with federation(tmp_path_factory.mktemp("parties")) as made:
        for name, party in PARTIES.items():
            node = NodeFolder.create(made.place / name, name, party=party)
            node.point(server=f"localhost:{made.folder.settings.port}", ca=made.folder.path / "ca.crt")
            made.folder.register(node.path / "node.pub")
            made.deployed.nodes[name] = node
        made.start("server", *HOSPITALS, *PARTIES)
        yield made


def test_secure_sums_and_parties(bench: Bench):
    parties = {name: bench.nodes.pop(name) for name in PARTIES}  # they have no data to train on inline

    def approve(hash: str) -> None:
        for node in (*bench.nodes.values(), *parties.values()):
            until(lambda node=node: hash in node.studies(), "the proposal")  # type: ignore[misc]
            node.decide(hash, "approved", disclose=True)

    table = bench.table(channels={"up": ["secure-sum"]})
    one = bench.submit(table)
    approve(one.hash)
    bench.same_as_inline(bench.ended(one), table)
    sealed = {"name": "cp-ntk-fl", "projection": 10, "density": 0.3}
    table = bench.table(algorithm=sealed, evaluate={"every": 2})
    one = bench.submit(table)
    approve(one.hash)
    done = bench.ended(one)
    assert done.status == "finished", (done.reason, bench.said(done))
    assert "mixer enrolled as the shuffler" in bench.said(done)
    assert load_run(bench.folder.store, str(done.run)).records[-1].metrics["clients/accuracy"].value > 0.6
    asked = {name: {line.get("asked") for line in node.logged() if "asked" in line} for name, node in parties.items()}
    assert asked == {"keys": {"deal"}, "mixer": {"begin", "shuffle"}}
