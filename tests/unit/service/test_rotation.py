"""The rotation: whose records are emitted next, and which are foreseen. The reader drives it."""

from tests.worlds.reading import ONE, TWO, Bench


def test_partitions_take_turns():
    bench = Bench(chunk_records=2, fetch_records=100)
    bench.start()
    bench.fill(ONE, 6)
    bench.fill(TWO, 6)
    while bench.reader.fetch(0.0, 0.0):
        pass
    turns = []
    while (emission := bench.reader.next_chunk(0.0)) is not None:
        turns.append(emission[0].partition)
    assert turns == [ONE, TWO] * 3


def test_little_waits_until_two_fetches_or_three_chunks_wait():
    bench = Bench(fetch_records=10)
    bench.start()
    bench.fill(ONE, 25)
    waits = []
    while bench.reader.fetch(0.0, 0.0):
        waits.append(bench.reader.waits_little)
    assert waits == [True, False, False]
    bench.emit()
    for _ in range(3):
        assert bench.reader.waits_little
        bench.fill(ONE, 1)
        bench.reader.fetch(0.0, 0.0)
    assert not bench.reader.waits_little
