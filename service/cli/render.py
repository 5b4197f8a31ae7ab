"""What a run looks like to a person: progress while it works, the account at the end."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from service.observability.snapshot import RunSummary, Snapshot


class RunProgress:
    """A live line: records resolved of those known, and what became of them.

    It is shown on a terminal only; elsewhere the logs tell what goes on.
    """

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._is_shown = console.is_terminal
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Show the line."""
        if self._is_shown:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take the line away."""
        if self._is_shown:
            self._progress.stop()

    def jars(self, coordinate: str, done: int, total: int) -> None:
        """Show that jars are being fetched."""
        self._show("fetching jars", done, total, coordinate)

    def step(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show what is going on before records flow."""
        self._show(text, done, total, "")

    def snapshot(self, snapshot: Snapshot) -> None:
        """Show where the records are."""
        resolved = snapshot.written + snapshot.filtered + snapshot.dead_lettered
        waiting = sum(part.ledger.waiting for part in snapshot.partitions)
        facts = (
            f"rows {snapshot.rows:,}  filtered {snapshot.filtered:,}  "
            f"dead letters {snapshot.dead_lettered:,}  unresolved {snapshot.unresolved:,}"
        )
        self._show("records", resolved, snapshot.read + waiting, facts)

    def _show(self, text: str, done: int, total: int, facts: str) -> None:
        if not self._is_shown:
            return
        if self._task is None:
            self._task = self._progress.add_task(text, total=total, facts=facts)
        self._progress.update(
            self._task, description=text, completed=done, total=total, facts=facts
        )


def show_account(console: Console, account: RunSummary) -> None:
    """Print an account as tables."""
    totals = Table(title="Where every record is", show_header=False, title_justify="left")
    totals.add_column()
    totals.add_column(justify="right")
    for label, value in (
        ("records read", account.read),
        ("  in the sinks", account.written),
        ("  filtered", account.filtered),
        ("  dead-lettered", account.dead_lettered),
        ("  unresolved", account.unresolved),
        ("rows written", account.rows),
        ("retries", account.retried),
        ("records/s", round(account.records_per_second)),
    ):
        totals.add_row(label, f"{value:,}")
    console.print(totals)
    partitions = Table(title="Partitions", title_justify="left")
    partitions.add_column("partition")
    for name in ("committed", "log end", "lag"):
        partitions.add_column(name, justify="right")
    for name, part in sorted(account.partitions.items()):
        partitions.add_row(
            escape(name), f"{part.committed:,}", f"{part.log_end:,}", f"{part.lag:,}"
        )
    console.print(partitions)
    if account.table is not None:
        console.print(f"table:        {escape(account.table)}", soft_wrap=True)
    console.print(f"dead letters: {escape(str(account.dead_letters))}", soft_wrap=True)
    for gap in account.problems():
        console.print(f"[bold red]open:[/] {escape(gap)}", soft_wrap=True)
