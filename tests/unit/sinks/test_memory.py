import subprocess
import sys

import pyarrow as pa
import pytest

from sinks import DiscardSink, ForeachSink
from sinks.shares import is_to_commit
from tests.support.batches import LINE, share
from tests.support.patience import seconds
from topology.errors import SinkFailed
from topology.sink import Batch, Committed


def found(txid, line=LINE, epoch=1):
    return Committed(line, epoch, txid)


def test_next_txid_of_each_line_is_to_be_committed_and_others_are_not():
    """Promise 14."""
    shares = [share(7), share(1, "orders[1]")]
    assert is_to_commit(shares, [found(6), found(0, "orders[1]")])
    assert not is_to_commit(shares, [found(7), found(4, "orders[1]")])
    assert is_to_commit([], []), "rows of no transaction"
    with pytest.raises(SinkFailed, match=r"orders\[1\] 1 is not committed, but others"):
        is_to_commit(shares, [found(7), found(0, "orders[1]")])


@pytest.mark.parametrize("has", [0, 5])
def test_sink_that_lost_commits_gets_no_more(has):
    """Promise 14: put back to an older state under a running service, rows would be missing."""
    with pytest.raises(SinkFailed, match=rf"up to {has}, but those up to 6 were committed"):
        is_to_commit([share(7)], [found(has)])


def test_sinks_without_transactions_get_every_row():
    got = []
    foreach, discard = ForeachSink(got.append, name="mine"), DiscardSink()
    columns = pa.RecordBatch.from_pylist([{"n": 2}])
    for sink in (foreach, discard):
        sink.write(Batch(1, [[{"n": 1}, None], columns], 3))
    assert got == [[{"n": 1}, None, {"n": 2}]]
    assert discard.rows == 3
    assert foreach.name == "mine"


def test_importing_the_sinks_imports_no_library_of_a_store():
    code = (
        "import sys, sinks; from sinks.spark.driver import SparkDriver; "
        "late = {'pyspark', 'py4j', 'confluent_kafka', 'pandas', 'deltalake', 'pyiceberg'}; "
        "print(sorted(late & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, check=True, timeout=seconds(60))
    assert done.stdout.strip() == b"[]"
