"""`parley node`: what the owner of a node decides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from parley.cli.screen import plain_value, print_table

app = typer.Typer(
    help="The owner of the data decides: which studies a node answers, and what it has answered.", no_args_is_help=True
)

Node = Annotated[Path, typer.Option("--node", help="The node's folder.", metavar="DIR", show_default=True)]
Study = Annotated[str, typer.Argument(help="A study's hash, or its beginning.", metavar="STUDY")]
_NODE = Path("parley-node")


@app.command("init")
def init(
    name: Annotated[str, typer.Argument(help="What the server will call this node.", metavar="NAME")],
    node: Node = _NODE,
    data: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="The samples (see 'parley deploy client --help').", metavar="PATH"),
    ] = None,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Of tables: the column to predict.", metavar="COLUMN"),
    ] = None,
    test_fraction: Annotated[float, typer.Option(help="Share of the samples to hold out for evaluation.")] = 0.2,
    party: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="A party of a method in place of data, such as 'shuffler'.", metavar="PARTY"),
    ] = None,
) -> None:
    """Make a node: a key of its own, node.toml, and a policy.toml that approves nothing."""
    from parley.core.errors import InputError
    from parley.deploy import keys
    from parley.deploy.node_folder import NodeFolder

    if party is not None and (data is not None or target is not None):
        raise InputError("a party has no data; leave out --data and --target.")
    folder = NodeFolder.create(node, name, test_fraction=test_fraction, party=party)
    folder.point(data=data, target=target)
    public = folder.path / "node.pub"
    print(f"made {node}; send {node / 'node.csr'} to the server and read the fingerprint of its key out to them:")
    print(f"  {keys.fingerprint(keys.public_text(public))}")
    print(f"keep {node / 'node.key'}: it is the node's identity and stays here.")


@app.command("pending")
def pending(node: Node = _NODE) -> None:
    """List the studies that were proposed, and what was decided about them."""
    from parley.deploy.consent import verdict
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    rows = []
    for hash in folder.studies():
        proposal = folder.proposal(hash)
        found = verdict(folder, proposal)
        said = "waits for you" if found.pending else found.why
        rows.append((hash[:12], proposal.title, proposal.algorithm, proposal.model, proposal.rounds, said))
    print_table(["study", "name", "algorithm", "model", "rounds", "decision"], rows, right=["rounds"])


@app.command("show")
def show(study: Study, node: Node = _NODE) -> None:
    """Show all settings of a study, its modules, and what it would hand out."""
    from parley.deploy.consent import discloses, policy_obstacle, verdict
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    proposal = folder.proposal(folder.named(study))
    handed_out = discloses(folder, proposal)
    facts: list[tuple[str, Any]] = [
        ("study", proposal.hash),
        ("Parley", proposal.parley),
        ("decision", verdict(folder, proposal).why),
        ("by policy", policy_obstacle(folder.policy, folder, proposal) or "approved"),
        ("hands out samples", handed_out or "no"),
    ]
    facts += [(f"module {name}", digest) for name, digest in proposal.modules.items()]
    print_table(["", ""], facts)
    rows: list[tuple[str, str]] = []
    for name, value in proposal.study.items():
        below = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{name}.{key}" if key else name, plain_value(inner)) for key, inner in below]
    print_table(["setting", "value"], rows)


@app.command("approve")
def approve(
    study: Study,
    disclose: Annotated[
        bool, typer.Option("--disclose", help="Also agree that samples are handed out, where the method does that.")
    ] = False,
    note: Annotated[str, typer.Option(help="Why, for the log.", metavar="TEXT")] = "",
    node: Node = _NODE,
) -> None:
    """Let this node answer a study, just as it is; more rounds or another seed ask again."""
    from parley.deploy.consent import check_decidable
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    hash = folder.named(study)
    check_decidable(folder, folder.proposal(hash), disclose)
    folder.decide(hash, "approved", disclose=disclose, note=note)
    print(f"approved {hash[:12]}")


@app.command("reject")
def reject(
    study: Study,
    note: Annotated[str, typer.Option(help="Why, for the log.", metavar="TEXT")] = "",
    node: Node = _NODE,
) -> None:
    """Let this node answer nothing of a study, from the next message on, whatever the policy says."""
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    hash = folder.named(study)
    folder.decide(hash, "rejected", note=note)
    print(f"rejected {hash[:12]}")


@app.command("log")
def log(
    node: Node = _NODE,
    last: Annotated[int, typer.Option(help="Only so many lines, the last ones; 0 for all.", min=0)] = 0,
) -> None:
    """Print what this node was asked and what it answered; refuses a log that was tampered with."""
    from parley.deploy.node_folder import NodeFolder

    lines = list(NodeFolder.open(node).logged())
    rows = [
        (
            line["when"], line["event"], str(line.get("study", ""))[:12] or None, line.get("round"),
            line.get("asked") or line.get("kind") or line.get("decision"), line.get("bytes_in"), line.get("bytes_out"),
            line.get("answered") or line.get("note"), line.get("verdict"),
        )
        for line in lines[-last:]
    ]  # fmt: skip
    columns = ["when", "event", "study", "round", "asked", "bytes in", "bytes out", "answer", "why it may"]
    print_table(columns, rows, right=["round", "bytes in", "bytes out"])
