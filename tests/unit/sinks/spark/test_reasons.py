import pytest

from sinks.errors import one_line
from sinks.spark.executors import from_python
from sinks.spark.jvm import from_log, last_words


class Silent(Exception):
    def __str__(self):
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
def test_an_error_is_told_in_one_line(error, said):
    assert one_line(error) == said


RAISED = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/app/tasks.py", line 3, in work
    return {}[task]
           ~~^^^^^^
KeyError: 7

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/app/tasks.py", line 5, in work
    raise ValueError("no such task:") from None
ValueError: no such task:
 7, says the list

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(P.scala:595)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Driver stacktrace:
"""


def test_python_error_of_an_executor_has_no_traceback():
    assert from_python(ValueError(RAISED)) == "ValueError: no such task:"
    assert from_python(ValueError("Traceback (most recent call last):\n  File")) is not None


@pytest.mark.parametrize("error", [ValueError("java.io.IOException: full"), Silent()])
def test_an_error_that_is_not_pythons_on_an_executor_is_none(error):
    assert from_python(error) is None


def test_a_log_is_told_by_its_first_exception():
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
def test_a_jvms_last_words_are_why_it_ended_itself(printed, said):
    assert last_words(printed) == said
