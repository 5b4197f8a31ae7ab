"""What each subcommand does."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from service.app import run_pipeline
from service.cli.checks import Check, run_checks
from service.cli.common import answers, configured, load_topology, print_json
from service.cli.embedded import embedded
from service.cli.render import RunProgress, show_account
from service.config.settings import Config, EngineName, load
from service.errors import BadConfig, NotStarted, RunIncomplete, ServerEnded
from service.observability import logs
from service.observability.snapshot import RunSummary
from topology.topology import Topology, as_facts, as_mermaid, as_text

_POLL_SECONDS = 0.5
_SOMEWHERE = {"kafka": {"bootstrap.servers": "-"}, "zookeeper": {"hosts": "-"}}


def run(
    target: str,
    config: Path | None,
    *,
    engine: EngineName | None,
    until_caught_up: bool,
    state_dir: Path | None,
    as_json: bool,
) -> None:
    """Run a topology and print its account; `state_dir` asks for embedded servers."""
    topology = load_topology(target)
    chosen = {} if engine is None else {"pipeline": {"engine": engine}}
    with RunProgress(Console(stderr=True)) as progress:

        def started(settings: Config) -> RunSummary:
            return run_pipeline(
                topology,
                settings,
                target=target,
                until_caught_up=until_caught_up,
                on_snapshot=progress.snapshot,
            )

        if state_dir is None:
            account = started(configured(config, chosen))
        else:
            account = _run_embedded(topology, config, chosen, state_dir, progress, started)
    if as_json:
        print_json(account.as_json())
    else:
        show_account(answers(), account)
    gaps = account.problems() if account.caught_up else account.losses()
    if gaps:
        raise RunIncomplete(gaps)


def _run_embedded(
    topology: Topology,
    config: Path | None,
    chosen: Mapping[str, Any],
    state_dir: Path,
    progress: RunProgress,
    run_with: Callable[[Config], RunSummary],
) -> RunSummary:
    """Run on servers of our own; what is `chosen` lies over the configuration."""
    # Read once before the servers start: a wrong key should not cost their start.
    configured(config, {**_SOMEWHERE, **chosen})
    progress.step("starting Kafka and ZooKeeper")
    started = False
    try:
        with embedded(state_dir, progress.jars) as servers:
            names = [source.topic for source in topology.sources]
            servers.ensure_topics(name for name in names if isinstance(name, str))
            settings = load(config, {**servers.overrides, **chosen})
            started = True
            return run_with(settings)
    except KeyboardInterrupt:
        if started:
            raise
        raise NotStarted("stopped before the run began; nothing was read") from None


def check(target: str, config: Path | None, *, as_json: bool) -> None:
    """Print a verdict per dependency; exit with 1 if one is bad."""
    topology = load_topology(target)
    try:
        settings = configured(config)
    except BadConfig as error:
        if as_json:
            print_json(
                {"ok": False, "checks": [Check("config", ok=False, detail=str(error)).as_json()]}
            )
        raise
    results: list[Check] = []
    for result in run_checks(topology, settings):
        results.append(result)
        if not as_json:
            sys.stdout.write(f"{result.as_line()}\n")
            sys.stdout.flush()
    ok = all(result.ok for result in results)
    if as_json:
        print_json({"ok": ok, "checks": [result.as_json() for result in results]})
    if not ok:
        raise typer.Exit(1)


def graph(target: str, *, mermaid: bool, as_json: bool) -> None:
    """Print the topology."""
    topology = load_topology(target)
    if as_json:
        print_json(as_facts(topology))
    elif mermaid:
        sys.stdout.write(as_mermaid(topology) + "\n")
    else:
        sys.stdout.write(f"{as_text(topology)}\n\n{as_mermaid(topology)}\n")


def dev_up(state_dir: Path, topics: Sequence[str], *, as_json: bool) -> None:
    """Start the servers and wait for Ctrl-C or SIGTERM. Raises ServerEnded."""
    logs.configure("warning", "console")
    try:
        with embedded(state_dir) as servers:
            servers.ensure_topics(topics)
            if as_json:
                addresses = {
                    "kafka": servers.kafka.address,
                    "zookeeper": servers.zookeeper.address,
                    "state_dir": str(state_dir.absolute()),
                }
                print_json(addresses)
            else:
                sys.stdout.write(
                    "Kafka and ZooKeeper are up. For service.toml:\n\n"
                    f'[kafka]\n"bootstrap.servers" = "{servers.kafka.address}"\n\n'
                    f'[zookeeper]\nhosts = "{servers.zookeeper.address}"\n\n'
                    f"Their data is in {state_dir}. Ctrl-C stops them.\n"
                )
            sys.stdout.flush()
            while True:
                for server in (servers.kafka, servers.zookeeper):
                    if not server.running:
                        raise ServerEnded(server.name, server.log_path)
                time.sleep(_POLL_SECONDS)  # a signal ends it
    except KeyboardInterrupt:
        return
