"""Logs: structlog events with stable snake_case names, as JSON or for a console."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_SECRET_WORDS = ("password", "secret", "token", "credential", "jaas", "private_key")
_HIDDEN = "***"


def configure(level: str, form: str) -> None:
    """Send every event at or above `level` to standard error, as `json` or `console`."""
    number = logging.getLevelNamesMapping()[level.upper()]
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if form == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.dict_tracebacks
            if form == "json"
            else structlog.processors.format_exc_info,
            redact,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, force=True)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it reports what run() raises anyway


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hide the values of fields, at any depth, whose names tell of a secret."""
    for key, value in event.items():
        event[key] = _redacted(key, value)
    return event


def _redacted(key: str, value: Any) -> Any:
    name = key.lower().replace(".", "_").replace("-", "_")
    if any(word in name for word in _SECRET_WORDS):
        return _HIDDEN
    if isinstance(value, dict):
        return {inner: _redacted(str(inner), found) for inner, found in value.items()}
    return value
