"""`parley deploy`: a federation of machines."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.cli.options import Set, StudyFile
from parley.cli.screen import print_table

if TYPE_CHECKING:
    from parley.engine.run import Run

app = typer.Typer(
    help="A federation of machines, carried by Flower: set it up, serve it, join it, train in it.", no_args_is_help=True
)

Folder = Annotated[
    Path, typer.Option("--server-folder", "-f", help="The server's folder.", metavar="DIR", show_default=True)
]
NodeFolder = Annotated[Path, typer.Option("--node", help="The node's folder.", metavar="DIR", show_default=True)]
_SERVER, _NODE = Path("parley-server"), Path("parley-node")


@app.command("init")
def init(
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="DIR")] = _SERVER,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="A name or address by which nodes reach this machine (repeatable); by default what it calls itself.",
            metavar="NAME",
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="The port for nodes.", min=1, max=65535)] = 9443,
    days: Annotated[float, typer.Option(help="Days until the server's certificate expires.")] = 365.0,
) -> None:
    """Make a server's folder: an authority, the server's certificate and deploy.toml."""
    from parley.deploy.server_folder import ServerFolder

    made = ServerFolder.create(folder, names or [], port=port, certificate_days=days)
    print(f"made {folder}; its certificate is for {', '.join(made.settings.names)}.")
    print(f"give {folder / 'ca.crt'} to every node, and register the requests that they send you:")
    print(f"  parley deploy register hospital-a.csr -f {folder}")
    print(f"  parley deploy server -f {folder}")


@app.command("renew")
def renew(folder: Folder = _SERVER) -> None:
    """Renew the server's certificate; nodes and a running server need no action."""
    from parley.deploy import certificates
    from parley.deploy.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    opened.renew()
    left = certificates.days_left(certificates.read_certificate(opened.certificate()[0]))
    print(f"renewed; the certificate is for {', '.join(opened.settings.names)} and for {left:.0f} days.")


@app.command("register")
def register(
    key: Annotated[
        Path,
        typer.Argument(help="What the node sent: a signing request (.csr) or its public key (.pub).", metavar="KEY"),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="What the node is called, where the public key alone does not say it.", metavar="NAME"),
    ] = None,
    folder: Folder = _SERVER,
) -> None:
    """Register a node by its signing request or public key. Compare the fingerprint with its owner.

    A signing request proves that who sent it has the private key, and that the name is the one it was made for; the
    fingerprint, that it comes from whom you think.
    """
    from parley.deploy import keys
    from parley.deploy.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    registered = opened.register(key, name)
    print(f"{registered} {keys.fingerprint(opened.nodes()[registered])}")


@app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="The node.", metavar="NAME")], folder: Folder = _SERVER) -> None:
    """Revoke a node's key at once; a new key can be registered."""
    from parley.deploy.server_folder import ServerFolder

    ServerFolder.open(folder).revoke(name)
    print(f"revoked {name}")


@app.command("nodes")
def nodes(folder: Folder = _SERVER) -> None:
    """List the registered nodes."""
    from parley.deploy import keys
    from parley.deploy.server_folder import ServerFolder

    opened = ServerFolder.open(folder)
    known = opened.numbers()
    rows = [
        (name, keys.fingerprint(key), "yes" if key in known else "when the server runs")
        for name, key in opened.nodes().items()
    ]
    print_table(["node", "fingerprint of its key", "known to Flower"], rows)


@app.command("server")
def server(folder: Folder = _SERVER) -> None:
    """Serve the nodes and carry out submitted runs, until Ctrl-C."""
    from parley.deploy.extra import check_flower
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.supervisor import Supervisor

    check_flower()
    Supervisor(ServerFolder.open(folder), lambda line: print(line, flush=True)).run()


@app.command("client")
def client(
    server: Annotated[
        str | None,
        typer.Option(help="The server, as HOST:PORT; kept in node.toml, like the others.", metavar="HOST:PORT"),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="The certificate of the deployment's authority.", metavar="FILE")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(help="The node's private key, if it is not node.key in the node's folder.", metavar="FILE"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The samples: a .csv, .parquet, .npz or .safetensors file, a folder of images by class, or "
            "file.py:function.",
            metavar="PATH",
        ),
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of tables: the column to predict.", metavar="COLUMN")] = None,
    node: NodeFolder = _NODE,
) -> None:
    """Join a federation with local data; connections go out only. Until Ctrl-C."""
    from parley.deploy.client import Client
    from parley.deploy.extra import check_flower
    from parley.deploy.node_folder import NodeFolder

    check_flower()
    folder = NodeFolder.open(node)
    folder.point(server=server, ca=ca, key=key, data=data, target=target)
    Client(folder, lambda line: print(line, flush=True)).run()


@app.command("run")
def run(
    study: StudyFile,
    settings: Set = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train, in place of the study's.", metavar="N")] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Train anew, though the same study was submitted before.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last run of the study, for more rounds.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Submit only; follow with 'parley deploy logs'.")] = False,
    folder: Folder = _SERVER,
) -> None:
    """Train a study with the nodes of the deployment; on the server's machine, while its server runs.

    A study that was submitted before is not started a second time. [data] of the study is for simulations: here the
    data are the nodes'.
    """
    from parley.study.toml import study_table

    overrides = [*(settings or []), *([f"rounds={rounds}"] if rounds is not None else [])]
    path, id = submitted(folder, study, study_table(study, overrides), again=again, resume=resume)
    if not detach:
        follow(path, id, whole=False)


def submitted(
    folder: Path, path: Path, table: dict[str, Any], *, again: bool = False, resume: bool = False
) -> tuple[Path, str]:
    """Submit the study of a file, of which this is the table; the server's folder and the id."""
    from parley.deploy.proposal import Proposal
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.submissions import Submissions, submitted_study

    opened = ServerFolder.open(folder)
    written = {"table": table, "base": str(path.resolve().parent)}
    proposal = Proposal.of(submitted_study(written), opened.nodes())
    submission, fresh = Submissions(opened).submit(written, proposal, again=again, resume=resume)
    status = "submitted" if fresh else submission.status
    print(f"{submission.id} ({proposal.title}, study {submission.hash[:12]}) {status}", flush=True)
    return opened.path, submission.id


def follow(path: Path, id: str, *, whole: bool) -> None:
    """Print a run's log until it ends; its end is the exit code."""
    raise typer.Exit(0 if finished(path, id, whole=whole) else 1)


def asked_of_nodes(folder: Path, path: Path, table: dict[str, Any]) -> Run:
    """The run of a question about the nodes' samples: submitted like any study, and not asked twice; `path` is the
    study's file."""
    from parley.deploy.server_folder import ServerFolder
    from parley.study.stored import load_run

    run = finished(*submitted(folder, path, table), whole=False)
    if not run:
        raise typer.Exit(1)
    return load_run(ServerFolder.open(folder).store, run)


def finished(path: Path, id: str, *, whole: bool) -> str:
    """Print a run's log until it ends; its id in the run store, nothing if it did not get to its end."""
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.submissions import Submissions
    from parley.store.locks import is_locked

    folder = ServerFolder.open(path)
    submissions, position = Submissions(folder), 0
    warned = False
    if not whole and submissions.log(id).exists() and not submissions[id].active:
        position = submissions.log(id).stat().st_size
    while True:
        submission = submissions[id]
        if submissions.log(id).exists():
            with submissions.log(id).open("rb") as file:
                file.seek(position)
                text = file.read()
            position += len(text)
            print(text.decode(errors="replace"), end="", flush=True)
        if not submission.active:
            print(
                f"{submission.id} {submission.status}: {submission.reason}"
                + (f" Run {submission.run} is in {folder.store}." if submission.run else "")
            )
            return str(submission.run) if submission.status == "finished" else ""
        if not warned and not is_locked(folder.path / "server.lock"):
            print(f"the server does not run; it begins when it does: parley deploy server -f {path}", flush=True)
            warned = True
        time.sleep(0.3)


@app.command("status")
def status(folder: Folder = _SERVER) -> None:
    """Show the submitted runs and their progress."""
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.submissions import Submissions
    from parley.store.locks import is_locked

    opened = ServerFolder.open(folder)
    print(f"the server {'runs' if is_locked(opened.path / 'server.lock') else 'does not run'}.")
    rows = [
        (
            submission.id,
            submission.status,
            submission.run,
            submission.attempts,
            ", ".join(submission.enrolled),
            submission.reason,
        )
        for submission in Submissions(opened).all()
    ]
    print_table(["submitted", "status", "run", "starts", "nodes", "why"], rows, right=["starts"])


@app.command("logs")
def logs(
    run: Annotated[
        str, typer.Argument(help="A submitted run, the beginning of its id, or 'last'.", metavar="RUN")
    ] = "last",
    following: Annotated[bool, typer.Option("--follow", help="Go on until the run ends.")] = False,
    folder: Folder = _SERVER,
) -> None:
    """Print the log of a run: enrolment, every round with its roll-call, and how it ended."""
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.submissions import Submissions

    opened = ServerFolder.open(folder)
    submissions = Submissions(opened)
    submission = submissions[run]
    if following:
        follow(opened.path, submission.id, whole=True)
    elif submissions.log(submission.id).exists():
        print(submissions.log(submission.id).read_text(encoding="utf-8"), end="")


@app.command("stop")
def stop(
    run: Annotated[str, typer.Argument(help="A submitted run, the beginning of its id, or 'last'.", metavar="RUN")],
    folder: Folder = _SERVER,
) -> None:
    """Stop a run after its current step; submitted again, it resumes."""
    from parley.core.errors import InputError
    from parley.deploy.server_folder import ServerFolder
    from parley.deploy.submissions import Submissions

    submissions = Submissions(ServerFolder.open(folder))
    submission = submissions[run]
    if not submission.active:
        raise InputError(f"run {submission.id} has ended already ({submission.status}).")
    submissions.ask_to_stop(submission.id)
    print(f"{submission.id} is asked to stop")


@app.command("check")
def check(
    node: Annotated[
        Path | None, typer.Option("--node", help="Check this node's machine instead of the server's.", metavar="DIR")
    ] = None,
    folder: Folder = _SERVER,
) -> None:
    """Preflight: versions, certificates, keys, clock, port, data and disk, at the server or at a node."""
    from parley.deploy.check import check_node, check_server
    from parley.deploy.node_folder import NodeFolder
    from parley.deploy.server_folder import ServerFolder

    findings = list(check_node(NodeFolder.open(node)) if node is not None else check_server(ServerFolder.open(folder)))
    print_table(["", "", ""], [(finding.what, "ok" if finding.fine else "WRONG", finding.text) for finding in findings])
    raise typer.Exit(0 if all(finding.fine for finding in findings) else 1)


@app.command("health")
def health(
    node: Annotated[
        Path | None, typer.Option("--node", help="Ask this node instead of the server.", metavar="DIR")
    ] = None,
    folder: Folder = _SERVER,
) -> None:
    """Say whether the server or a node on this machine works, by its health endpoint; exit code 1 if it does not."""
    from parley.deploy.health import asked
    from parley.deploy.node_folder import NodeFolder
    from parley.deploy.server_folder import ServerFolder

    port = NodeFolder.open(node).settings.health if node is not None else ServerFolder.open(folder).settings.health
    answer = asked(port)
    print_table(["", ""], [(name, str(value).lower()) for name, value in answer.items()])
    raise typer.Exit(0 if answer.get("healthy") is True else 1)


@app.command("backup")
def backup(
    file: Annotated[Path, typer.Argument(help="The file to write.", metavar="FILE")],
    node: Annotated[
        Path | None, typer.Option("--node", help="Back up this node instead of the server.", metavar="DIR")
    ] = None,
    folder: Folder = _SERVER,
) -> None:
    """Write the server's folder, or a node's without samples and answers, to one file; they may run meanwhile.

    It has private keys: keep it as you keep them.
    """
    from parley.deploy.backup import backup as write

    print(f"wrote {write(node or folder, file)} files to {file}; it has private keys.")


@app.command("restore")
def restore(
    file: Annotated[Path, typer.Argument(help="What 'parley deploy backup' wrote.", metavar="FILE")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="DIR")],
) -> None:
    """Make the folder of a server or a node from a backup. A restored node approves nothing."""
    from parley.deploy.backup import restore as read

    print(f"made {folder}: {read(file, folder)}")


@app.command("demo")
def demo(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder to keep it in; by default it is made for the occasion and goes.", metavar="DIR"),
    ] = None,
) -> None:
    """Run a federation on this machine: a server and three hospitals as processes over TLS, with consent."""
    import tempfile

    from parley.core.numbers import percent
    from parley.deploy.demo import demo as shown
    from parley.deploy.extra import check_flower
    from parley.store.runs import RunStore

    check_flower()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="parley-demo-") as temporary:
        workspace = (folder or Path(temporary)).resolve()
        workspace.mkdir(parents=True, exist_ok=True)
        summary = shown(workspace, lambda text: print(f"{time.monotonic() - begun:5.1f} s  {text}", flush=True))
        if summary.status != "finished" or summary.run is None:
            raise typer.Exit(1)
        with RunStore(workspace / "server" / "runs.db", create=False) as store:
            records = store.records(summary.run)
        first, last = (record.metrics["clients/accuracy"].value for record in (records[0], records[-1]))
        print(f"accuracy on the hospitals' held-out samples: {percent(first)} before, {percent(last)} after.")
        if folder is not None:
            print(f"all of it is in {folder}; parley deploy status -f {folder / 'server'}")
