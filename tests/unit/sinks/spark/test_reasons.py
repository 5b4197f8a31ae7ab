import pytest

from sinks.spark.reasons import from_log, last_words, one_line


class Silent(Exception):
    def __str__(self) -> str:
        raise ConnectionRefusedError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no"), "no"),
        (ValueError(""), "ValueError"),
        (Silent(), "Silent"),
        (ValueError("\n first \n second"), "first"),
        (
            ValueError("An error occurred while calling o7.save.\n: java.io.IOException: full"),
            "java.io.IOException: full",
        ),
        (ValueError("x" * 1000), "x" * 500),
    ],
)
def test_an_error_is_told_in_one_line(error: Exception, said: str) -> None:
    assert one_line(error) == said


def test_a_log_is_told_by_its_first_exception() -> None:
    printed = "WARN hello\nException in thread main: no\n\tat Error.java\nError two"
    assert from_log(printed) == "Exception in thread main: no"
    assert from_log("nothing") is None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (
            "26/01/01 ERROR x\nTerminating due to java.lang.OutOfMemoryError: Java heap space\n",
            "Terminating due to java.lang.OutOfMemoryError: Java heap space",
        ),
        (
            "#\n# A fatal error was detected:\n#\n#  SIGSEGV (0xb) at pc=0x07f, pid=1\n#\n# JRE",
            "SIGSEGV (0xb) at pc=0x07f, pid=1",
        ),
        (
            "#\n# There is insufficient memory for the Java Runtime Environment to continue.\n",
            "There is insufficient memory for the Java Runtime Environment to continue.",
        ),
        ("26/01/01 ERROR Executor: java.io.IOException", None),
        ("", None),
    ],
)
def test_a_jvms_last_words_are_why_it_ended_itself(printed: str, said: str | None) -> None:
    assert last_words(printed) == said
