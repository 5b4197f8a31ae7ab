"""Values as lines of one text, so that a parser can take a whole chunk of documents at once.

Each row that is parsed must be the record it came from, so no value may become two rows, or
none. It cannot: each value begins with `{` and ends with `}`, and a line break stands behind
it. In a string a line break is an error, and outside of one `}`, white space, `{` is an error
within a document. So where a value ends, a document ends; each value holds one at least, and
if there are as many rows as values, each holds exactly one. Line breaks within a value are
white space like any other, as long as the text is parsed as a whole and not in blocks of lines.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from topology.payloads.limits import Limits

Values: TypeAlias = "pa.Array[Any]"  # of type binary
_OPENING, _CLOSING, _ARRAY, _BREAK = b"{}[\n"
_N, _I, _F = b"NIf"
_LAST_ASCII = 0x7F
_FOLDED = 0xDF  # what `{` and `[` have in common, and no other byte has: `{` & 0xDF is `[`
_BLOCK = 1 << 17  # bytes; arrays of larger ones are new pages each time
_BEFORE_VALUE = np.isin(np.arange(256), list(b":,[- \t\n\r"))


def lines_of(values: Values, limits: Limits, *, with_breaks: bool) -> pa.Buffer | None:
    """Return the values as lines, or None if one of them needs a closer look.

    In a few calls, most without the GIL. `with_breaks` says that each value ends with one byte
    more, a line break that is not the record's. Then the text is where the values are; without,
    they are copied.
    """
    if values.null_count:
        return None
    count, breaks = len(values), int(with_breaks)
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
        or _may_hold_a_constant(codes)
        or (longest > limits.max_number_digits and limits.may_hide_a_long_number(codes))
        or (codes.max() > _LAST_ASCII and not _are_utf8(values))
    ):
        return None
    return data_buffer.slice(first, last - first) if breaks else _joined(values)


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


def _may_hold_a_constant(codes: "npt.NDArray[np.uint8]") -> bool:
    """Whether NaN or Inf may stand in the text as a value: Arrow takes them where nobody reads."""
    for start in range(0, len(codes), _BLOCK):
        part = codes[start : start + _BLOCK + 3]
        is_n = part[1:] == _N
        found = part[1:-2] == _I
        found &= part[3:] == _F
        found |= is_n[:-2] & is_n[2:]
        # np.any costs ten times as much where there is none.
        if np.count_nonzero(found) and _BEFORE_VALUE[part[:-3][found]].any():
            return True
    return False


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
