"""What ends a run of the simulator."""


class Violation(Exception):
    """A promise was broken. `promise` is its number in docs/promises.md, 0 for an exception."""

    def __init__(self, promise, what):
        super().__init__(promise, what)  # as they are: a violation travels between processes
        self.promise = promise
        self.what = what

    def __str__(self):
        return f"promise {self.promise}: {self.what}"
