"""The oracle's part for worlds on the spark engine: ranges, planned and sealed, and what they hold.

Beside T1, T3, T5 and T7 of transaction_oracle.py: R1 no range is run, in any attempt, that does
not stand in its node so, nor while it may be dropped from there. R2 what was planned is sealed
once, and stays as it is then; nothing is committed before its seal stands in the node. R3 what
lands of a range is what one run of it made, of the transaction's live attempt, whole, and not
discarded. R4 what no table has got is discarded by a process that lives. R5 a table that the
driver stages for has, in their order, all rows that fit it, and no other; of each record with such
a one there is a durable letter, and of none that fits whole. R6 the leader epochs of what lands
never go back, while the topic stays.
"""

from tests.simulation.errors import Violation
from tests.simulation.spooled import fits, rows_of
from tests.simulation.transaction_oracle import TransactionOracle


class RangeOracle(TransactionOracle):
    """Every check of ranges. Raises Violation."""

    def __init__(self, world):
        super().__init__(world)
        self._letters = set()  # that are durable, by record and table
        self._latest = {}  # leader epochs that landed

    def submitted(self, life, partition, first, end):
        held = life.reader.assignment[partition]
        if held.is_owned and held.is_moving:
            raise Violation(14, f"{life.name} runs {partition} at {first}, which is being mended")
        for each in self._written.get((life.name, partition), {}).values():
            if (each.first, each.end) == (first, end):
                user = self._users.setdefault((partition, each.txid, each.attempt), life.name)
                if user != life.name:
                    raise Violation(14, f"{life.name} runs {each}, an attempt of {user}")
                if each.digest is not None:
                    self._world.seen("sealed_range_run_again")
                elif each.attempt > 1:
                    self._world.seen("planned_range_run_again")
                return each.attempt
        raise Violation(14, f"{life.name} runs {partition} {first} to {end}, which is not stored")

    def _removed(self, partition, gone, old, new):
        super()._removed(partition, gone, old, new)
        if gone.txid > new.committed:  # whoever plans it anew knows nothing of its attempts
            key = (partition, gone.txid)
            self._users = {each: user for each, user in self._users.items() if each[:2] != key}

    def _may_be_dropped(self, old, new):
        """Nor does anyone miss what was only planned, with all that comes after it."""
        left = [each for each in old.open if each.txid > new.committed]
        return super()._may_be_dropped(old, new) or left[0].digest is None

    def _changed(self, partition, was, now, *, own):
        if now.attempt < was.attempt:
            raise Violation(14, f"{partition}: {was} went back to {now}")
        has = any(self.txid_of(table, partition) >= was.txid for table in self._world.tables)
        if now[2:] == was[2:]:
            return
        if has:
            raise Violation(14, f"{partition}: {was} became {now}, and a table has it")
        if (now.first, now.end) == (was.first, was.end) and was.digest is None:
            if now.attempt == was.attempt and not own:
                raise Violation(14, f"{partition}: {was} of another process became {now}")
            self._world.seen("range_sealed")
            return
        if now.attempt == was.attempt:
            raise Violation(14, f"{partition}: {was} became {now}")
        # A table may have it only if all before it are sealed, too.
        up_to = [each for each in self._before.open if each.txid <= was.txid]
        is_promised = all(each.digest is not None for each in up_to)
        if is_promised and self._world.settings.kind == "transactional":
            raise Violation(14, f"{partition}: {was} was replayed as {now}")
        is_same_place = (now.first, now.end) == (was.first, was.end)
        self._world.seen("seal_given_up" if is_same_place else "range_planned_anew")

    def _records_of(self, what, table, sender, partition, stored, rows):
        if table.name in self._world.settings.spooled:
            run = self._world.executors.kept(sender, partition, stored)
            if run is None:
                raise Violation(14, f"{what} has what no run has made: {stored}")
            self._are_spooled(what, table.name, run, rows)
        else:
            run = self._made_by(what, table, sender, stored, rows)
        self._are_the_stored(what, stored, run.records)
        self._are_no_older(what, table, partition, run.records)
        return frozenset(run.records)

    def _are_no_older(self, what, table, partition, records):
        """What an older leader wrote is not in the log any more behind what a later one wrote."""
        for record in records:
            key = (table.name, partition, record.topic_id)
            latest = self._latest.setdefault(key, record.epoch)
            if record.epoch < latest:
                raise Violation(14, f"{what} has {record} behind what epoch {latest} wrote")
            self._latest[key] = record.epoch

    def _made_by(self, what, table, sender, stored, parts):
        if len(parts) != 1:
            raise Violation(3, f"{what} has what {len(parts)} runs have made")
        part, run = parts[0], parts[0].run
        if part.is_discarded:
            raise Violation(3, f"{what} has rows that were discarded")
        if run.life is not sender or (run.first, run.end) != (stored.first, stored.end):
            raise Violation(14, f"{what} has what {run.life.name} made of {run.first} to {run.end}")
        if run.attempt != stored.attempt:
            raise Violation(14, f"{what} has what attempt {run.attempt} made: {stored}")
        if part.table != table.name:
            raise Violation(14, f"{what} has rows for {part.table}")
        part.is_landed = True
        return run

    # What comes to the driver by files

    def lettered(self, record, table):
        """A letter of a record is durable, since a table takes not all of its rows.

        Where the log was cut off and written anew from the first record of an opaque range on,
        another record may have stood at its offset when it was refused.
        """
        if fits(record, table, self._world.settings.refuses):
            if not self._may_be_another(record, table):
                raise Violation(13, f"a letter tells that {table} refused {record}, which fits")
            self._world.seen("letter_of_what_stands_where_another_was_refused")
        if (record, table) in self._letters:
            self._world.seen("letter_of_a_refused_row_repeated")
        self._letters.add((record, table))

    def _may_be_another(self, record, table):
        """Whether it may be another record of which a row was refused, that stood at its offset."""
        refuses = self._world.settings.refuses
        log = self._world.cluster.logs[record.topic_id, record.partition]
        before = [each for each in log.history.values() if each.offset == record.offset]
        return bool(log.cut) and not all(fits(each, table, refuses) for each in before)

    def _are_spooled(self, what, table, run, rows):
        wanted = []
        for record in run.records:
            if record in run.buried:
                continue
            made = rows_of(run.number, record, table, self._world.settings.refuses)
            if (record, table) in run.lettered:
                self._world.seen("refused_row_committed_with_its_letter")
                is_free = self._may_be_another(record, table)
                wanted += [row for row in made if row.fits and (not is_free or row in rows)]
                continue
            if not all(row.fits for row in made):
                raise Violation(13, f"{what} landed without a letter of {record}")
            wanted += made
        for row in rows:
            if row.table != table:
                raise Violation(14, f"{what} has rows for {row.table}")
            if row.run != run.number:
                raise Violation(14, f"{what} has rows of run {row.run}, not of {run.number}")
        if rows != wanted:
            missing = sorted({row.offset for row in wanted} - {row.offset for row in rows})
            raise Violation(
                3, f"{what} has {len(rows)} rows, not {len(wanted)} in order; none of {missing}"
            )
