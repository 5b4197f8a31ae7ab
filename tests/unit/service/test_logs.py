import json
import logging
import os
import subprocess
import sys
import textwrap
from dataclasses import make_dataclass

import pytest
import structlog

from service.observability.logs import PatientStderr
from tests.support.patience import seconds
from tests.support.python import run_python
from topology.masking import HIDDEN, is_secret, mask, redacted

CANARY = "canary-4f1e9b"
_SECONDS = seconds(30)


@pytest.fixture(autouse=True)
def _restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("py4j").setLevel(logging.NOTSET)
    mask.learn(())


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_events_and_libraries_warnings_are_json_lines_on_standard_error():
    done = run_python("""
        import logging, structlog
        from service.observability import logs
        log = structlog.get_logger()
        logs.configure("info", "json", ["hush-hush"])
        log.info("service_started", pipeline="flights")
        log.debug("record_failed")
        try:
            raise ValueError("wrong")
        except ValueError:
            log.exception("loop_failed")
        logging.getLogger("kazoo").warning("lost %s", "hush-hush")
        logging.getLogger("kazoo").info("too quiet")
    """)
    assert done.stdout == ""
    started, failed, library = lines(done.stderr)
    assert started.pop("timestamp").endswith("Z")
    assert started == {"event": "service_started", "level": "info", "pipeline": "flights"}
    assert failed["exception"][0]["exc_value"] == "wrong"
    del library["timestamp"]
    assert library == {
        "event": "library_message", "library": "kazoo", "level": "warning",
        "text": f"lost {HIDDEN}",
    }  # fmt: skip


@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_reaches_a_line_at_any_depth_or_in_an_exception(form):
    done = run_python(f"""
        import structlog
        from service.observability import logs
        logs.configure("info", {form!r}, ["{CANARY}-known"])
        log = structlog.get_logger()
        kafka = {{"sasl.password": "{CANARY}", "sasl.username": "user", "group.id": "visible"}}
        log.info("one", kafka=kafka, deep=[({{"a": {{"ssl.key.pem": "{CANARY}"}}}},)])
        log.info("two", note="the text says {CANARY}-known here")
        log.bind(api_key="{CANARY}").warning("three")
        def fail(kafka):
            raise RuntimeError("refused {CANARY}-known")
        try:
            fail(kafka)
        except RuntimeError as error:
            log.exception("four", reason=error)
    """)
    assert CANARY not in done.stderr
    assert done.stderr.count(HIDDEN) >= 5
    assert "visible" in done.stderr


def test_a_level_is_kept_and_console_lines_are_readable():
    done = run_python("""
        import structlog
        from service.observability import logs
        logs.configure("warning", "console")
        structlog.get_logger().info("quiet")
        structlog.get_logger().warning("loud", records=3)
    """)
    (line,) = done.stderr.splitlines()
    assert line.split()[-2:] == ["loud", "records=3"]


WRITER = """
    import sys, threading, structlog
    from service.observability import logs
    from service.observability.logs import stderr
    logs.configure("info", "json")
    log = structlog.get_logger()
    for number in range(20_000):
        log.info("partition_paused", number=number)
    print("done", flush=True)
    if sys.stdin.read(1):
        stderr.drain(60)  # or this one is dropped, too
        log.info("again")
        stderr.drain(60)  # at its end a process waits for a second only
"""


def process():
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(WRITER)], **pipes)


@pytest.mark.slow
@pytest.mark.parametrize("closed", [True, False])
def test_standard_error_without_a_reader_does_not_stop_the_process(closed):
    with process() as writer:
        if closed:
            writer.stderr.close()
        assert writer.stdout.readline() == b"done\n"  # 2 MB of lines; a pipe holds 64 KiB
        writer.stdin.close()
        assert writer.wait(_SECONDS) == 0


def test_dropped_log_lines_are_counted_later():
    with process() as writer:
        assert writer.stdout.readline() == b"done\n"
        read = b""
        while b"log_lines_dropped" not in read:
            read += os.read(writer.stderr.fileno(), 1 << 16)
        writer.stdin.write(b"x")
        writer.stdin.close()
        read += writer.stderr.read()
        assert writer.wait(_SECONDS) == 0
    events = lines(read.decode())
    dropped = sum(event.get("count", 0) for event in events if event["event"] != "again")
    written = sum(event["event"] == "partition_paused" for event in events)
    assert written + dropped == 20_000
    assert events[-1]["event"] == "again"


def test_standard_error_without_a_file_is_written_at_once(capsys):
    PatientStderr().write("a line\n")
    assert capsys.readouterr().err == "a line\n"


def test_secrets_are_told_by_names_in_any_spelling():
    for name in ("sasl.password", "SSL_KEY_PEM", "fs.s3a.secret.key", "sasl-jaas-config"):
        assert is_secret(name)
    for name in ("bootstrap.servers", "key", "sasl.username", "partition"):
        assert not is_secret(name)
    settings = make_dataclass("Settings", ["user", "api_token"])("me", CANARY)
    assert redacted(settings) == {"user": "me", "api_token": HIDDEN}
    nested = {"password": {"a": CANARY}, "n": 1, "l": [(1,)]}
    assert redacted(nested) == {"password": HIDDEN, "n": 1, "l": [[1]]}


def test_a_value_that_contains_itself_is_no_trouble():
    endless: dict = {}
    endless["me"] = endless
    assert HIDDEN in str(redacted(endless))


def test_a_mask_hides_longer_secrets_first_and_leaves_short_words():
    mask.learn(["hush-hush", "hush-hush-2", "a", 'say "it"'])
    assert mask("a hush-hush-2 hush-hush") == f"a {HIDDEN} {HIDDEN}"
    assert mask(json.dumps('say "it"')) == f'"{HIDDEN}"'
