"""Variants that measure nothing, for the tests of how variants are run."""

import os
import time


def count(job):
    """Take a moment, print something, and tell who did it."""
    print("on the way")  # noqa: T201
    time.sleep(0.15)
    return {"records": job.records, "pid": os.getpid()}


def fail(_job):
    """Fail."""
    raise ValueError("no such luck")


VARIANTS = {"count": count, "fail": fail}
