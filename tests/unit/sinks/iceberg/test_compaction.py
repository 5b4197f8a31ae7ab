from hypothesis import given
from hypothesis import strategies as st

from sinks.files.small import cut
from sinks.spark.iceberg.compaction import small_files
from sinks.spark.iceberg.log import TableFile


def file(num_bytes: int, *, spec_id: int = 0, has_deletes: bool = False) -> TableFile:
    return TableFile(f"f{num_bytes}", num_bytes, spec_id, (), has_deletes, "{}")


def test_only_small_files_of_the_newest_partitions_without_deletes_are_joined() -> None:
    small = file(74)
    files = [small, file(75), file(74, spec_id=1), file(74, has_deletes=True)]
    assert small_files(files, 0, 100) == [small]


@given(st.lists(st.integers(0, 200)), st.integers(1, 100))
def test_each_list_makes_files_fewer_and_no_larger_than_wanted(
    sizes: list[int], target: int
) -> None:
    files = small_files(map(file, sizes), 0, target)
    lists = cut(files, target)
    assert all(len(each) > 1 for each in lists)
    assert all(sum(one.num_bytes for one in each) <= target for each in lists)
    joined = [one for each in lists for one in each]
    assert joined == [one for one in files if any(one is each for each in joined)]


@given(st.lists(st.integers(1, 200)), st.integers(1, 100))
def test_it_comes_to_an_end(sizes: list[int], target: int) -> None:
    files = [*map(file, sizes)]
    for _ in range(len(sizes) + 1):
        lists = cut(small_files(files, 0, target), target)
        if not lists:
            return
        gone = {id(one) for each in lists for one in each}
        files = [one for one in files if id(one) not in gone]
        files += [file(sum(one.num_bytes for one in each)) for each in lists]
    raise AssertionError(files)
