"""What Spark said, in one line."""

import re

_LONGEST = 500
# What a JVM prints when it ends itself: out of memory, of the system's memory, or crashed.
_LAST_WORDS = re.compile(
    r"^[# ]*(Terminating due to .*|There is insufficient memory .*|SIG[A-Z]+ \(.*)$", re.MULTILINE
)


def text_of(error: BaseException) -> str:
    """An error's text. A Java exception's is asked of its JVM, which may be gone: then nothing."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever py4j raises then
        return ""


def one_line(error: BaseException) -> str:
    """The first line that says something: py4j puts the Java exception on the second."""
    lines = [line.strip(" :") for line in text_of(error).splitlines() if line.strip(" :")]
    if not lines:
        return type(error).__name__
    java = len(lines) > 1 and lines[0].startswith("An error occurred while calling")
    return lines[1 if java else 0][:_LONGEST]


def from_python(error: BaseException) -> str | None:
    """What a function of Python's raised on an executor: its class and the text's first line.

    None if the error tells of no such thing.
    """
    _, traceback, after = text_of(error).rpartition("Traceback (most recent call last):")
    if not traceback:
        return None
    # Frames are indented, and so is what Java says after it.
    lines = (line for line in after.splitlines() if line and not line[0].isspace())
    return next(lines, "an error without a text")[:_LONGEST]


def from_log(log: str) -> str | None:
    """The first line of a JVM's output that names an exception, or None."""
    lines = [line.strip() for line in log.splitlines()]
    named = (line for line in lines if "Exception" in line or "Error" in line)
    return next((line[:_LONGEST] for line in named if not line.startswith("at ")), None)


def last_words(log: str) -> str | None:
    """Why a JVM has ended itself, by its output; None if it does not say, as when killed."""
    found = _LAST_WORDS.findall(log)
    return str(found[-1])[:_LONGEST].strip() if found else None
