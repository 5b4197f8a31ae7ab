"""Every subcommand of `headrace`, and its exit codes."""

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from service import logs
from service.cli.checks import run_checks
from service.cli.embedded import embedded
from service.cli.loading import load_topology
from service.cli.offsets import read_offsets, show_offsets
from service.cli.render import RunProgress, show_account
from service.config import Config, load
from service.errors import AccountOpen
from service.running import run_pipeline
from topology.describe import as_facts, as_mermaid, as_text

app = typer.Typer(
    help="Reads Kafka, runs Python bolts, hands the rows to Spark, and accounts for every record.",
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 78 bad configuration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
offsets_app = typer.Typer(help="The committed offsets in ZooKeeper.", no_args_is_help=True)
dev_app = typer.Typer(help="Servers for development.", no_args_is_help=True)
app.add_typer(offsets_app, name="offsets")
app.add_typer(dev_app, name="dev")

Target = Annotated[str, typer.Argument(metavar="MODULE:TOPOLOGY", help="The topology to use.")]
ConfigPath = Annotated[Path | None, typer.Option("--config", help="The TOML file.")]
Json = Annotated[bool, typer.Option("--json", help="Print facts as one JSON object.")]
StateDir = Annotated[Path, typer.Option(help="Where the embedded servers keep their data.")]
_STATE = Path(".headrace")


@app.command()
def run(
    target: Target,
    config: ConfigPath = None,
    *,
    until_caught_up: Annotated[
        bool, typer.Option(help="End when all that was there at the start is resolved.")
    ] = False,
    with_servers: Annotated[
        bool, typer.Option("--embedded", help="Bring Kafka and ZooKeeper along.")
    ] = False,
    state_dir: StateDir = _STATE,
    as_json: Json = False,
) -> None:
    """Run a topology until it is stopped (SIGTERM or Ctrl-C drains it) or has caught up."""
    console = Console(stderr=True)
    topology = load_topology(target)
    topology.validate()
    with RunProgress(console) as progress:
        if with_servers:
            # Read once before the servers start: a wrong key should not cost their start.
            load(config, {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}})
            progress.step("starting Kafka and ZooKeeper")
            with embedded(state_dir, progress.jars) as servers:
                servers.ensure_topics(source.topic for source in topology.sources)
                settings = _configured(config, servers.overrides)
                account = run_pipeline(
                    topology,
                    settings,
                    until_caught_up=until_caught_up,
                    on_snapshot=progress.snapshot,
                )
        else:
            settings = _configured(config, {})
            account = run_pipeline(
                topology,
                settings,
                until_caught_up=until_caught_up,
                on_snapshot=progress.snapshot,
            )
    if as_json:
        _print_json(account.as_json())
    else:
        show_account(Console(), account)
    gaps = account.gaps() if account.caught_up else account.losses()
    if gaps:
        raise AccountOpen(gaps)


@app.command()
def check(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Check the configuration and every dependency, a line each."""
    topology = load_topology(target)
    topology.validate()
    settings = _configured(config, {})
    results = run_checks(topology, settings)
    if as_json:
        _print_json({"ok": all(result.ok for result in results),
                     "checks": [result.as_json() for result in results]})  # fmt: skip
    else:
        for result in results:
            sys.stdout.write(
                f"{'OK' if result.ok else 'FAIL':<5}{result.name:<11}{result.detail}\n"
            )
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@app.command()
def graph(
    target: Target,
    *,
    mermaid: Annotated[bool, typer.Option(help="Print only the Mermaid chart.")] = False,
    as_json: Json = False,
) -> None:
    """Print the topology as text and as a Mermaid chart."""
    topology = load_topology(target)
    topology.validate()
    if as_json:
        _print_json(as_facts(topology))
    elif mermaid:
        sys.stdout.write(as_mermaid(topology) + "\n")
    else:
        sys.stdout.write(f"{as_text(topology)}\n\n{as_mermaid(topology)}\n")


@offsets_app.command("show")
def offsets_show(target: Target, config: ConfigPath = None, *, as_json: Json = False) -> None:
    """Show committed, frontier, log end and lag of every partition."""
    topology = load_topology(target)
    settings = _configured(config, {})
    rows = read_offsets(topology, settings)
    if as_json:
        _print_json({"partitions": {row.partition: row.as_json() for row in rows}})
    else:
        show_offsets(Console(), rows)


@dev_app.command("up")
def dev_up(
    *,
    state_dir: StateDir = _STATE,
    topic: Annotated[list[str] | None, typer.Option(help="Create this topic, too.")] = None,
    as_json: Json = False,
) -> None:
    """Start Kafka and ZooKeeper and keep them up until Ctrl-C."""
    with embedded(state_dir) as servers:
        servers.ensure_topics(topic or [])
        if as_json:
            _print_json({"kafka": servers.kafka.address, "zookeeper": servers.zookeeper.address})
        else:
            sys.stdout.write(
                "Kafka and ZooKeeper are up. For service.toml:\n\n"
                f'[kafka]\n"bootstrap.servers" = "{servers.kafka.address}"\n\n'
                f'[zookeeper]\nhosts = "{servers.zookeeper.address}"\n\n'
                f"Their data is in {state_dir}. Ctrl-C stops them.\n"
            )
        sys.stdout.flush()
        try:
            while servers.kafka.running and servers.zookeeper.running:
                time.sleep(0.5)
        except KeyboardInterrupt:
            return
    raise typer.Exit(1)


def _configured(path: Path | None, overrides: dict[str, Any]) -> Config:
    settings = load(path, overrides)
    logs.configure(settings.logs.level, settings.logs.format)
    return settings


def _print_json(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
