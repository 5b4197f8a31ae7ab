"""Which of many things fail: found by halving."""

from collections.abc import Callable, Iterator


def failing(
    work: Callable[[int, int], object], count: int, is_its_own: Callable[[Exception], bool]
) -> Iterator[tuple[int, Exception]]:
    """The places that fail by themselves, with their errors: fast when few do, linear when all do.

    `work` takes a span, from a place to before another. An error that is not `is_its_own`, a
    thing's own, is raised.
    """
    spans = [(0, count)] if count else []
    while spans:
        start, stop = spans.pop()
        try:
            work(start, stop)
        except Exception as error:
            if not is_its_own(error):
                raise
            if stop - start == 1:
                yield start, error
                continue
            middle = (start + stop) // 2
            spans += [(middle, stop), (start, middle)]
