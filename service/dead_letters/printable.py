"""Contents of messages as text that is safe to print on a terminal. Pure."""

from datetime import UTC, datetime

import msgspec

from topology.masking import escaped

_LARGEST_JSON = 1_000_000  # bytes that are parsed to be laid out
_PER_LINE = 16
_PRINTED = frozenset(map(chr, range(0x20, 0x7F)))  # of ASCII


def cut(text: str, most: int) -> str:
    shown = escaped(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def utc_text(at_ms: int) -> str:
    """Return a time in UTC for a person; headers and nodes may hold any number."""
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"


def header_text(value: bytes | None) -> str:
    if value is None:
        return "(null)"
    text = _printable(value)
    return f"0x{value.hex()}" if text is None else escaped(text)


def value_lines(value: bytes, most: int) -> list[str]:
    """Return at most `most` bytes of a value as lines of indented JSON, text, or a hex dump."""
    text = _indented(value) or _printable(value)
    if text is None:
        lines = _dump(value[:most])
        left = max(0, len(value) - most)
    else:
        shown = text[:most]
        lines = [escaped(line) for line in shown.split("\n")]
        left = len(text) - len(shown)
    if left:
        unit = "bytes" if text is None else "characters"
        lines.append(f"… {left:,} more {unit}; --value-only prints all of it")
    return lines


def _indented(value: bytes) -> str | None:
    """Indent JSON and keep its tokens; None if it is not JSON."""
    if value.lstrip()[:1] not in (b"{", b"[") or len(value) > _LARGEST_JSON:
        return None
    try:
        msgspec.json.decode(value)
        return msgspec.json.format(value, indent=2).decode()
    except (ValueError, RecursionError):
        return None


def _printable(value: bytes) -> str | None:
    """Return the text if it is UTF-8 and nearly all of it prints."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    strange = sum(not each.isprintable() and each not in "\t\r\n" for each in text)
    return text if strange * 10 <= len(text) else None


def _dump(value: bytes) -> list[str]:
    lines = []
    for start in range(0, len(value), _PER_LINE):
        part = value[start : start + _PER_LINE]
        shown = "".join(chr(each) if chr(each) in _PRINTED else "." for each in part)
        lines.append(f"{start:08x}  {part.hex(' '):<{3 * _PER_LINE}} {shown}")
    return lines
