"""`parley node`: what the owner of a node decides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from parley.cli.screen import print_table
from parley.core.numbers import setting_text
from parley.core.text import shown

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
        str | None, typer.Option(help="The samples (see 'parley deploy client --help').", metavar="PATH")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of tables: the column to predict.", metavar="COLUMN")] = None,
    test_fraction: Annotated[float, typer.Option(help="Share of the samples to hold out for evaluation.")] = 0.2,
    party: Annotated[
        str | None, typer.Option(help="A party of a method in place of data, such as 'shuffler'.", metavar="PARTY")
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
    """List the proposed studies and the decisions on them."""
    from parley.deploy.consent import verdict
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    rows = []
    for hash in folder.studies():
        proposal = folder.proposal(hash)
        decision = verdict(folder, proposal)
        state = "waits for you" if decision.pending else decision.why
        rows.append((hash[:12], proposal.title, proposal.algorithm, proposal.model, proposal.rounds, state))
    print_table(["study", "name", "algorithm", "model", "rounds", "decision"], rows, right=["rounds"])


@app.command("show")
def show(study: Study, node: Node = _NODE) -> None:
    """Show all settings of a study, its modules, and what it would disclose."""
    from parley.deploy.consent import discloses, policy_obstacle, verdict
    from parley.deploy.keys import fingerprint
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    proposal = folder.proposal(folder.named(study))
    handed_out = discloses(folder, proposal)
    facts: list[tuple[str, Any]] = [
        ("study", proposal.hash),
        ("Parley", proposal.parley),
        ("decision", verdict(folder, proposal).why),
        ("by policy", policy_obstacle(folder.policy, folder, proposal) or "approved"),
        ("discloses samples", handed_out or "no"),
    ]
    facts += [(f"module {name}", digest) for name, digest in proposal.modules.items()]
    facts += [(f"node {name}", fingerprint(key)) for name, key in proposal.roster.items()]
    print_table(["", ""], facts)
    rows: list[tuple[str, str]] = []
    for name, value in proposal.study.items():
        below = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{name}.{key}" if key else name, setting_text(inner)) for key, inner in below]
    print_table(["setting", "value"], rows)


@app.command("approve")
def approve(
    study: Study,
    disclose: Annotated[
        bool, typer.Option("--disclose", help="Also agree that samples are sent, if the method sends them.")
    ] = False,
    note: Annotated[str, typer.Option(help="Why, for the log.", metavar="TEXT")] = "",
    node: Node = _NODE,
) -> None:
    """Approve one run of a study, exactly as proposed; more rounds or another seed ask again.

    Approved again after a run, it answers one more.
    """
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
    """Reject a study from the next message on, whatever the policy says."""
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    hash = folder.named(study)
    folder.decide(hash, "rejected", note=note)
    print(f"rejected {hash[:12]}")


@app.command("purge")
def purge(
    days: Annotated[
        float | None,
        typer.Option(help="Of runs and studies older than this; by default the policy's approval_days.", min=0),
    ] = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    node: Node = _NODE,
) -> None:
    """Remove what this node keeps of old runs (samples, memory, answers), and studies that nobody decided about.

    The log, the decisions and what has been disclosed stay; a run that went is never begun again.
    """
    from parley.deploy.node_folder import NodeFolder
    from parley.deploy.purge import old_runs, old_studies, remove

    folder = NodeFolder.open(node)
    age = folder.policy.approval_days if days is None else days
    runs, studies = old_runs(folder, age), old_studies(folder, age)
    for path in runs + studies:
        print(f"{'would remove' if dry else 'removed'} {path}")
    if not dry:
        remove(folder, runs + studies)
    print(f"{len(runs)} runs and {len(studies)} studies are older than {age:g} days.")


def _answer(line: dict[str, Any]) -> str | None:
    """What was answered; of a refusal that the server knows by its id alone, what happened too."""
    if "why" in line:
        return shown(f"{line['answered']} {line['why']}")
    return line.get("answered") or line.get("note")


def _shown(line: dict[str, Any], answered: set[str]) -> bool:
    """Of a message that was answered one line is enough."""
    return line["event"] != "received" or line["frame"] not in answered


@app.command("log")
def log(
    node: Node = _NODE,
    last: Annotated[int, typer.Option(help="Number of last lines; 0 for all.", min=0)] = 0,
    disclosed: Annotated[
        bool, typer.Option("--disclosed", help="Instead, what has been answered in all, in every run of every study.")
    ] = False,
) -> None:
    """Print the questions and answers of this node; refuses a log that was tampered with."""
    from parley.deploy.node_folder import NodeFolder

    folder = NodeFolder.open(node)
    if disclosed:
        _print_disclosed(folder)
        return
    lines = list(folder.logged())
    answered = {str(line["frame"]) for line in lines if line["event"] == "message" and "frame" in line}
    lines = [line for line in lines if _shown(line, answered)]
    rows = [
        (
            line["when"],
            line["event"],
            str(line.get("study", ""))[:12] or None,
            line.get("round"),
            line.get("asked") or line.get("what") or line.get("kind") or line.get("decision"),
            line.get("bytes_in"),
            line.get("bytes_out"),
            _answer(line),
            line.get("verdict"),
        )
        for line in lines[-last:]
    ]
    columns = ["when", "event", "study", "round", "asked", "bytes in", "bytes out", "answer", "why it may"]
    print_table(columns, rows, right=["round", "bytes in", "bytes out"])


def _print_disclosed(folder: Any) -> None:
    """Per run, what was disclosed, and what pairs of runs reveal jointly."""
    import math

    from parley.deploy.disclosed import disclosed

    records = disclosed(folder)
    rows = [
        (
            record.study[:12],
            record.title,
            record.run,
            record.by,
            each.name,
            "-".join(map(str, dict.fromkeys(each.rounds))),
            each.count,
            each.size,
        )
        for record in records
        for each in record.answers
    ]
    columns = ["study", "name", "run", "approved by", "asked", "rounds", "answers", "bytes"]
    print_table(columns, rows, right=["answers", "bytes"])
    answers, size = sum(row[-2] for row in rows), sum(row[-1] for row in rows)
    print(f"{answers} answers of {size} bytes in {len(records)} runs.")
    if private := [record.epsilon for record in records if record.epsilon is not None]:
        print(f"[privacy] of {len(private)} runs costs an epsilon of at most {math.fsum(private):.4g} together.")
    for record in records:
        for grid in record.grids:
            print(f"Run {shown(record.run)} counted samples ('{shown(grid.asked)}') in cells {shown(grid.cells)}.")
        if record.near:
            print(f"Run {shown(record.run)} of study {record.study[:12]}: {record.near}")
