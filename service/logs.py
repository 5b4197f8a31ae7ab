"""Logs: structlog events with stable snake_case names, as JSON or for a console.

They go to standard error, the standard library's warnings among them; facts go to
standard output. What names or holds a secret is hidden (`service.redaction`).
"""

import logging
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from service.printing import escaped
from service.redaction import redacted
from service.stderr import stderr
from topology.masking import mask

# Without the values of local variables: they hold records, and secrets.
_json_traceback = structlog.processors.ExceptionRenderer(
    ExceptionDictTransformer(show_locals=False)
)


def configure(level: str, form: str, secrets: Iterable[str] = ()) -> None:
    """Send every event at or above `level` to standard error, as `json` or `console`.

    `secrets` are hidden wherever they occur in a line.
    """
    mask.learn(secrets)
    number = logging.getLevelNamesMapping()[level.upper()]
    is_json = form == "json"
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _json_traceback if is_json else structlog.processors.format_exc_info,
        redact,
        *([] if is_json else [_escape]),  # JSON is escaped by itself
    ]
    render: Any = (
        structlog.processors.JSONRenderer()
        if is_json
        else structlog.dev.ConsoleRenderer(colors=_on_terminal())
    )
    structlog.configure(
        processors=[*shared, render, _mask],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stderr),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_library, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render, _mask],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports what run() raises anyway


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide the values of fields, at any depth, whose names tell of a secret."""
    for key, value in event.items():
        event[key] = redacted(value, key)
    return event


def _escape(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Let no text of a record or an error be a command to the terminal, or another line."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = escaped(value, keeping="\n" if key == "exception" else "")
    return event


def _mask(_logger: Any, _method: str, line: Any) -> str:
    return mask(line)


def _name_library(
    _logger: Any, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Give a library's free text the form of an event: a stable name, the text as a field."""
    record: logging.LogRecord = event["_record"]
    event["library"], event["text"] = record.name, event["event"]
    event["event"] = "library_message"
    return event


def _on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()
