"""Which files may be removed that nobody has heard of."""

import pytest

from sinks.files.data_file import DataFile
from sinks.files.doubtful import Doubtful
from sinks.files.statistics import Statistics

FILES = [DataFile(path, 1, 10, 0, {}, Statistics(1)) for path in ("a", "b", "c")]


class Refused(Exception):
    pass


def failing(doubtful: Doubtful, error: Exception, files: list[DataFile] = FILES) -> None:
    with pytest.raises(type(error)), doubtful.committing(files, refusals=Refused):
        raise error


def test_files_of_a_commit_that_went_well_or_was_refused_are_in_no_doubt() -> None:
    doubtful = Doubtful()
    with doubtful.committing(FILES):
        assert doubtful.without(FILES) == []
    assert doubtful.without(FILES) == FILES
    failing(doubtful, Refused())
    assert doubtful.without(FILES) == FILES


def test_files_of_a_commit_of_which_nothing_is_known_are_in_doubt_until_it_is() -> None:
    doubtful = Doubtful()
    failing(doubtful, OSError(), FILES[:2])
    assert doubtful.without(FILES) == FILES[2:]
    with doubtful.committing(FILES[:1]):
        pass
    assert doubtful.without(FILES) == [FILES[0], FILES[2]]


def test_a_later_look_at_the_table_settles_which_of_them_are_part_of_it() -> None:
    doubtful = Doubtful()
    failing(doubtful, OSError())
    doubtful.settle(FILES, named={"b"})
    assert doubtful.without(FILES) == [FILES[0], FILES[2]]
