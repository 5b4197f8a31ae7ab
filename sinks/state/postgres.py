"""State in a table of PostgreSQL's: values and txids in one transaction of the database's."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from sinks.errors import DatabaseError
from sinks.shares import is_to_commit
from sinks.spark.spool import Spool
from sinks.spark.sql import facts as catalogue
from sinks.spark.sql.columns import is_text
from sinks.spark.sql.connection import Connection
from sinks.spark.sql.copied import is_exact
from sinks.spark.sql.copy_text import encode
from sinks.spark.sql.database import Database, nothing, opening
from sinks.spark.sql.examiner import Examiner, Way
from sinks.spark.sql.names import table_name
from sinks.spark.sql.place import Place, place_of
from sinks.spark.sql.postgres import FACTS, Statements
from sinks.spark.sql.state_rows import StateRows
from sinks.spark.sql.telling import tell
from sinks.spark.sql.transaction_lines import TransactionLines
from sinks.spark.sql.wanted import Wanted, wanted_of
from sinks.state.store import Change, StateStore
from topology.errors import InvalidSchema, SinkFailed
from topology.masking import mask
from topology.sink import Sink, SinkContext, SparkDriver
from topology.state import LINE, Shape, State
from topology.transactional import Committed, Fence, Share

Result = TypeVar("Result")

_LONGEST_KEY_BYTES = 2_000  # its index takes up to about 2,700, the line's name included
_ALLOWED = (
    "allowed are text, booleans, whole numbers, decimals of up to 38 digits, dates, timestamps of "
    "up to microseconds, and, but for a key, floats"
)


class PostgresState(StateStore):
    """Keeps a state in a table of PostgreSQL's. Needs its driver in Spark's JVM.

    A table that is not there is created, with the key and the line as its primary key. It is the
    state's own: others may read it, and add columns that have a default; one with constraints,
    triggers or other unique indexes is refused, and so is a value that would not come back as
    it was (bytes, lists, structs, nanoseconds), or a float as a key.
    """

    needs_spark = True
    needs_jars = ("postgresql",)

    def __init__(
        self, url: str, table: str, *, user: str | None = None, password: str | None = None
    ) -> None:
        """Only stores. Raises InvalidTopology for the URL, InvalidSchema for the name.

        `url` is JDBC's. `user` and `password` are, in this order, what is given here, in the
        URL, or in PGUSER and PGPASSWORD when it is opened.
        """
        self.table = table
        self._name = table_name(table)
        self._place = place_of(url, user, password, what="PostgresState")
        self._context: SinkContext | None = None
        self._wanted: Wanted | None = None
        self._spool: Spool | None = None
        self._database: Database | None = None
        self._way: Way | None = None

    def sink(self, state: State) -> Sink[Any]:
        """See the contract. Raises InvalidSchema when PostgreSQL cannot have such a table."""
        self._suited(state.shape)
        return super().sink(state)

    def open(self, context: SinkContext, shape: Shape) -> None:
        """Connect, create what is missing, and check the table; see the contract."""
        place, where = self._reached()
        wanted = self._suited(shape)
        target = Examiner(self._name, wanted, where, adds=False, has_lines=context.exactly_once)

        def examine(connection: Connection) -> None:
            """Over each new connection; what is missing is made over the first."""
            way = target.examine(connection, makes=self._way is None)
            if way.trial_reason is not None:
                raise SinkFailed(f"{where}: {way.trial_reason}; a state has a table of its own")
            self._way = way

        self._context, self._wanted, self._way = context, wanted, None
        self._spool = _spool(context)
        self._database = Database(_spark(context, where), place, _application(context), examine)
        with opening(where, place):
            self._spool.open()
            self._database.connect(group=f"{self.table}-open")

    def fence(self, fences: Sequence[Fence]) -> list[Committed]:
        """Raise the epochs that are new; see the contract."""
        return self._run(lambda connection: self._lines.fence(connection, fences), "fence")

    def committed(self, lines: Sequence[str]) -> list[Committed]:
        """Read what stands at the lines, as soon as nobody is about to change it.

        A transaction whose reply was lost holds the lines' locks until the server has ended it.
        """
        return self._run(
            lambda connection: self._lines.found(connection, lines, locked=True), "committed"
        )

    def update(self, shares: Sequence[Share], keys: pa.Table, change: Change) -> None:
        """Change rows and move the lines in one transaction; see the contract.

        The lines are locked last, so who is slow, or frozen, holds up nobody. That they stand
        before the locks where they stood before the rows were read says that nobody has changed
        those: whoever does moves the lines. Where that is not so, or a line's rows may depend on
        another one's, the whole table is locked.
        """
        lines = [share.line for share in shares]

        def is_due(connection: Connection, *, locked: bool) -> bool:
            found = self._lines.found(connection, lines, locked=locked)
            return is_to_commit(shares, found)

        def update(connection: Connection) -> None:
            if shares and not is_due(connection, locked=False):
                return  # what is fenced or committed stays so
            rows = self._rows(connection)
            if not shares or LINE not in keys.column_names:
                rows.lock()
            if keys.num_rows:
                rows.bring(change(rows.stored(keys)))
            if shares and not is_due(connection, locked=True):
                connection.rollback()
                return
            if keys.num_rows:
                rows.merge()
            if shares:
                self._lines.move(connection, shares)

        self._run(update, "update")

    def load(self, context: SinkContext, shape: Shape) -> pa.Table:
        """All rows, over a connection of its own; see the contract."""
        place, where = self._reached()
        wanted = self._suited(shape)
        spool = _spool(context)

        def read(connection: Connection) -> pa.Table:
            text = connection.text(FACTS, self._name.quoted)
            if text is None:
                return shape.schema.empty_table()
            facts = catalogue.facts_of(text)
            if wrong := list(catalogue.complaints(facts, wanted)):
                raise SinkFailed(f"{where}: {'; '.join(wrong)}")
            statements = Statements(facts.schema, facts.name, wanted.schema.names, wanted.key)
            return StateRows(connection, statements, wanted.schema, spool).every()

        database = Database(_spark(context, where), place, _application(context), nothing)
        spool.open()
        with closing(spool), closing(database):
            return _told(lambda: database.run(read, group=f"{self.table}-load"), self.table)

    def refused(self, rows: pa.Table) -> Mapping[int, str]:
        """Rows with a text or time that PostgreSQL has not, or too long a key."""
        key = [] if self._wanted is None else [*self._wanted.key]
        texts = [rows[name] for name in key if name in rows.column_names]
        reasons = {
            place: f"found a key of {length} bytes; up to {_LONGEST_KEY_BYTES} are allowed"
            for place, length in enumerate(_lengths(texts, rows.num_rows))
            if length > _LONGEST_KEY_BYTES
        }
        return encode(rows).rejected | reasons

    def close(self) -> None:
        """Remove the spool, and let go of the connection. Spark itself belongs to the service."""
        if self._spool is not None:
            self._spool.close()
        if self._database is not None:
            self._database.close()
        self._database = None

    def _reached(self) -> tuple[Place, str]:
        """Where the database is, and what it is called in errors."""
        place = self._place.with_environment(os.environ)
        mask.add(place.secrets)
        return place, f"table '{self.table}' at {place.shown}"

    def _suited(self, shape: Shape) -> Wanted:
        """What the table has to be like. Raises InvalidSchema for a type that it cannot keep."""
        wanted = wanted_of(self.table, shape.schema, shape.row_key, None)
        for field in wanted.schema:
            is_key = field.name in wanted.key
            if not is_exact(field.type) or (is_key and kinds.is_floating(field.type)):
                what = f"{'key' if is_key else 'value'} '{field.name}' is {field.type}"
                where = f"state '{shape.state}' in table '{self.table}'"
                raise InvalidSchema(f"{where}: {what}; {_ALLOWED}")
        return Wanted(wanted.schema, wanted.key, may_grow=False)

    @property
    def _statements(self) -> Statements:
        if self._way is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return self._way.statements

    @property
    def _lines(self) -> TransactionLines:
        if self._context is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return TransactionLines(self._statements, self._context.pipeline, self._context.sink)

    def _rows(self, connection: Connection) -> StateRows:
        if self._wanted is None or self._spool is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return StateRows(connection, self._statements, self._wanted.schema, self._spool)

    def _run(self, step: Callable[[Connection], Result], what: str) -> Result:
        """Run a transaction; what fails is for the writer."""
        database = self._database
        if database is None:
            raise SinkFailed(f"table '{self.table}' is not open")
        return _told(lambda: database.run(step, group=f"{self.table}-{what}"), self.table)


def _told(run: Callable[[], Result], table: str) -> Result:
    try:
        return run()
    except DatabaseError as error:
        tell(error, table)


def _spark(context: SinkContext, where: str) -> SparkDriver:
    if context.spark is None:
        raise SinkFailed(f"{where} needs Spark; none was configured")
    return context.spark


def _spool(context: SinkContext) -> Spool:
    return Spool(context.warehouse, f"{context.pipeline}.{context.sink}")


def _application(context: SinkContext) -> str:
    return f"headrace {context.pipeline}/{context.sink}"


def _lengths(texts: Sequence[Any], num_rows: int) -> list[int]:
    """How many bytes a row's texts have."""
    lengths = np.zeros(num_rows, np.int64)
    for column in texts:
        if is_text(column.type):
            lengths += pc.binary_length(column).to_numpy()
    found: list[int] = lengths.tolist()
    return found
