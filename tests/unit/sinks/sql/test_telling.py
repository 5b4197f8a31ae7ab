"""What a refused statement means for the sink."""

import pytest

from sinks.errors import DatabaseError
from sinks.spark.sql.telling import RowsRefused, tell
from topology.errors import SinkBusy, SinkFailed


@pytest.mark.parametrize(
    ("state", "raised"),
    [("55P03", SinkBusy), ("42P01", SinkFailed), ("23505", RowsRefused)],
)
def test_an_error_of_the_database_is_told_as_sinks_do(state: str, raised: type[Exception]) -> None:
    with pytest.raises(raised, match="table 'words': no"):
        tell(DatabaseError(state, "no"), "words")


def test_one_that_may_pass_stays_what_it_is() -> None:
    error = DatabaseError("08006", "the connection broke")
    with pytest.raises(DatabaseError) as caught:
        tell(error, "words")
    assert caught.value is error
