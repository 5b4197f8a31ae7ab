"""Values as lines of one text, so that a parser can take a whole chunk of documents at once.

Each row that is parsed must be the record it came from, so no value may become two rows, or
none. It cannot: each value begins with `{` and ends with `}`, and a line break stands behind
it. In a string a line break is an error, and outside of one `}`, white space, `{` is an error
within a document. So where a value ends, a document ends; each value holds one at least, and
if there are as many rows as values, each holds exactly one. Line breaks within a value are
white space like any other, as long as the text is parsed as a whole and not in blocks of lines.
"""

from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from topology.payloads.documents import complaint
from topology.payloads.limits import Limits
from topology.payloads.plain import NO_VALUE
from topology.signals import Reject, RejectRows

Values: TypeAlias = "pa.Array[Any]"  # of type binary
_OPENING, _CLOSING, _ARRAY, _BREAK = b"{}[\n"
_LAST_ASCII = 0x7F
_FOLDED = 0xDF  # what `{` and `[` have in common, and no other byte has: `{` & 0xDF is `[`


class Screen:
    """Makes values a text of lines and keeps the limits. Any number of threads may call it.

    `with_breaks` says that each value ends with one byte more, a line break that is not the
    record's. Then the text is where the values are; without, they are copied.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._refused = limits.json_screen()

    def lines_of(self, values: Values, *, with_breaks: bool) -> pa.Buffer:
        """The values as lines. Raises RejectRows for those that are none, or break a limit."""
        text = self._at_once(values, int(with_breaks))
        if text is None:
            text = self._looked_at(own_values(values, with_breaks=with_breaks))
        return text

    def _at_once(self, values: Values, breaks: int) -> pa.Buffer | None:
        """The lines, if no value needs a closer look; in a few calls, most without the GIL."""
        if values.null_count:
            return None
        count, limits = len(values), self._limits
        _, offsets_buffer, data_buffer = values.buffers()
        if offsets_buffer is None or data_buffer is None:
            return None
        offsets = np.frombuffer(memoryview(offsets_buffer), np.int32)
        offsets = offsets[values.offset : values.offset + count + 1]
        first, last = int(offsets[0]), int(offsets[-1])
        begins = offsets[:-1] - first
        ends = offsets[1:] - (first + breaks)
        sizes = ends - begins
        longest = sizes.max()
        if sizes.min() <= 0 or longest > limits.max_bytes:
            return None
        codes = np.frombuffer(memoryview(data_buffer), np.uint8)[first:last]
        if (
            (codes.take(begins) != _OPENING).any()
            or (codes.take(ends - 1) != _CLOSING).any()
            or (breaks and (codes.take(ends) != _BREAK).any())
            or _may_be_deeper(codes, begins, limits.max_depth)
            or (longest > limits.max_number_digits and limits.may_hide_a_long_number(codes))
            or (codes.max() > _LAST_ASCII and not _are_utf8(values))
        ):
            return None
        return data_buffer.slice(first, last - first) if breaks else _joined(values)

    def _looked_at(self, values: list[bytes | None]) -> pa.Buffer:
        """The lines, each value looked at closely. Raises RejectRows."""
        lines: list[bytes] = []
        reasons: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                lines.append(self._line_of(value))
            except Reject as rejected:
                reasons[place] = rejected.reason
        if reasons:
            raise RejectRows(reasons)
        return pa.py_buffer(b"\n".join(lines))

    def _line_of(self, value: bytes | None) -> bytes:
        if value is None:
            raise Reject(NO_VALUE)
        if (reason := self._refused(value)) is not None:
            raise Reject(reason)
        if not value.isascii() and not _is_utf8(value):
            raise Reject("no JSON: not UTF-8")
        if value[:1] == b"{" and value[-1:] == b"}":
            return value
        try:
            line = msgspec.json.format(value, indent=-1)  # without any white space
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise Reject(complaint(error)) from error
        if line[:1] != b"{":
            raise Reject("no JSON object")
        return line


def own_values(values: Values, *, with_breaks: bool) -> list[bytes | None]:
    """The records' own bytes."""
    found: list[bytes | None] = values.to_pylist()
    if not with_breaks:
        return found
    return [None if value is None else value[:-1] for value in found]


def _may_be_deeper(codes: Any, begins: Any, max_depth: int) -> bool:
    """Whether a value opens more brackets than that; many beside each other are no proof."""
    folded = codes & _FOLDED
    opened = np.equal(folded, _ARRAY, out=folded.view(np.bool_))
    spare = np.count_nonzero(opened) - len(begins)  # each value opens one at least
    if spare < max_depth:
        return False
    return int(np.add.reduceat(opened, begins, dtype=np.int32).max()) > max_depth


def _joined(values: Values) -> pa.Buffer:
    """The values with line breaks between them, in C++."""
    whole = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    joined: Any = pc.binary_join(whole, b"\n")
    text: pa.Buffer = joined[0].as_buffer()
    return text


def _are_utf8(values: Values) -> bool:
    try:
        values.cast(pa.string())  # copies nothing
    except pa.ArrowInvalid:
        return False
    return True


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
