import os
import shlex
from pathlib import Path

import pytest

from sinks.errors import SparkStartFailed, one_line
from sinks.spark.executors import from_python
from sinks.spark.jvm import from_log, last_words
from sinks.spark.settings import LOG_STORE, check, settings

DELTA = "/jars/delta-spark_4.1_2.13-4.4.0.jar"
ICEBERG = "/jars/iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
DELTAS_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
ICEBERGS_EXTENSION = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
HOME = Path("/run/a place")


def made(conf, *jars):
    return settings("orders", conf, jars, HOME)


def test_what_the_user_sets_wins():
    ours = made({}, DELTA)
    joined = {"spark.driver.extraJavaOptions", "spark.jars", "spark.sql.extensions"}
    theirs = {name: "theirs" for name in ours if name not in joined}
    theirs["spark.master"] = "local[7]"
    assert {name: made(theirs, DELTA)[name] for name in theirs} == theirs


def test_jars_and_extensions_are_ours_and_the_users():
    wanted = f"com.example.Mine, {DELTAS_EXTENSION}"
    conf = {"spark.jars": "/mine.jar", "spark.sql.extensions": wanted}
    both = made(conf, DELTA, ICEBERG)
    assert both["spark.jars"] == f"{DELTA},{ICEBERG},/mine.jar"
    extensions = both["spark.sql.extensions"].split(",")
    assert extensions == [DELTAS_EXTENSION, ICEBERGS_EXTENSION, "com.example.Mine"]
    alone = made(conf)
    assert alone["spark.jars"] == "/mine.jar"
    assert set(alone["spark.sql.extensions"].split(",")) == {"com.example.Mine", DELTAS_EXTENSION}


@pytest.mark.parametrize("users", ["-Dlog4j2.level=INFO", "-XX:-ExitOnOutOfMemoryError", ""])
def test_jvm_ends_when_out_of_memory(users):
    conf = {"spark.driver.extraJavaOptions": users}
    options = shlex.split(made(conf)["spark.driver.extraJavaOptions"])
    assert options[-1] == "-XX:+ExitOnOutOfMemoryError"  # the last one holds
    assert options[0] == "-Dlog4j2.configurationFile=file:///run/a%20place/log4j2.properties"
    assert options[1] == "-Djava.io.tmpdir=/run/a place"
    assert options[2:-1] == users.split()


@pytest.mark.parametrize("master", ["spark://10.0.0.1:7077", "k8s://https://10.0.0.1", "yarn"])
def test_cluster_masters_get_no_driver_address(master):
    assert "spark.driver.host" in made({"spark.master": "local[4,4]"})
    conf = {"spark.master": master, "spark.driver.host": "driver.example"}
    assert "spark.driver.bindAddress" not in made(conf)
    assert made(conf)["spark.driver.host"] == "driver.example"


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local[2,4]", "true"),
        ("k8s://https://10.0.0.1", "true"),
        ("spark://10.0.0.1:7077", None),  # its executors need the cluster's own secret
        ("local-cluster[2,1,1024]", None),
    ],
)
def test_rpc_is_authenticated_where_spark_makes_the_secret(master, expected):
    assert made({"spark.master": master}).get("spark.authenticate") == expected
    assert made({"spark.master": master, "spark.authenticate": "no"})["spark.authenticate"] == "no"


def test_python_workers_import_as_this_process_does():
    """A user's `service/` in the current folder, which comes last, is not taken for ours."""
    given = ["/app", "", "/usr/lib/python3.11", "/strange:place"]
    ours = settings("orders", {}, [], HOME, given)
    path = ours["spark.executorEnv.PYTHONPATH"].split(os.pathsep)
    assert path == ["/app", str(Path.cwd()), "/usr/lib/python3.11"]
    assert ours["spark.executorEnv.PYTHONSAFEPATH"] == "1"  # no other folder comes before them
    users = {"spark.executorEnv.PYTHONPATH": "/theirs"}
    theirs = settings("orders", users, [], HOME, given)
    assert theirs["spark.executorEnv.PYTHONPATH"] == "/theirs"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "driver.memory",
            "2g",
            r"driver.memory: found .* Spark ignores, .* spark\.driver\.memory, or",
        ),
        ("spark.remote", "sc://localhost", "driver has to run beside this process"),
        ("spark.api.mode", "Connect", "driver has to run beside this process"),
        ("spark.submit.deployMode", "cluster", "driver has to run beside this process"),
        ("sparkk.master", "yarn", r"sparkk\.master: found a name .*, expected spark\.master, or"),
        ("spark.master", "local[2", r"spark\.master: found 'local\[2', expected local, "),
    ],
)
def test_unusable_properties_are_refused(name, value, message):
    with pytest.raises(SparkStartFailed, match=message):
        check({name: value})


def test_deltas_log_on_s3_gets_a_store_that_puts_conditionally():
    names = [f"spark.delta.logStore.{scheme}.impl" for scheme in ("s3", "s3a")]
    both = made({}, DELTA, "/jars/hadoop-aws-3.4.2.jar")
    assert [both[name] for name in names] == [LOG_STORE, LOG_STORE]
    assert not {*names} & {*made({}, DELTA)}


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
        ("26/01 ERROR x\n{}\n", "Terminating due to java.lang.OutOfMemoryError: Java heap space"),
        ("#\n# A fatal error was detected:\n#\n#  {}\n#\n# JRE", "SIGSEGV (0xb) at pc=0x7f, pid=1"),
        ("#\n# {}\n", "There is insufficient memory for the Java Runtime Environment to continue."),
        ("26/01/01 ERROR Executor: java.io.IOException", None),
        ("", None),
    ],
)
def test_a_jvms_last_words_are_why_it_ended_itself(printed, said):
    assert last_words(printed.format(said)) == said
