"""Limits on what a parser is given: bytes, depth, and the length of numbers.

A record is looked at twice. The screen is a handful of calls into C and lets nearly every
record pass; it never lets one pass that breaks a limit. What it stops is looked at closely,
and only that look says no.

The screen counts brackets wherever they stand, and finds long numbers by looking at every
k-th byte: a run of digits that is too long covers so many neighbouring samples that they all
are digits. A text that is shorter than the longest number needs no look at all.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from topology.errors import InvalidTopology

Refused: TypeAlias = Callable[[bytes], str | None]  # why a payload is refused, or None

_ARRAY = ord("[")  # `int in bytes` is memchr; `bytes in bytes` is not
_SAMPLES = 32  # neighbours that a too long number covers; so many seldom are digits by chance
_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")
# It ends at the text's end, too: a search for a quote that never comes must not be repeated.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_EXPONENT = re.compile(rb"[0-9][eE][+-]?0*([0-9]+)")
_STEP = np.zeros(256, np.int8)
_STEP[list(b"{[")] = 1
_STEP[list(b"}]")] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a payload may be at most. A record above a limit is rejected before it is parsed.

    `max_bytes` is the size of the value. `max_depth` counts arrays and objects within each
    other, the outermost included. `max_number_digits` is the longest run of digits outside of
    strings. `max_exponent` is the greatest power of ten, either way, of a number that becomes
    a `Decimal`: others are bounded by their own range. Raises InvalidTopology.
    """

    max_bytes: int = 1_048_576
    max_depth: int = 64
    max_number_digits: int = 1_000
    max_exponent: int = 1_000

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidTopology(f"Limits({name}={value!r}): allowed are whole numbers from 1")

    def too_large(self, value: bytes) -> str | None:
        """Why a payload of any format is refused, or None."""
        if len(value) <= self.max_bytes:
            return None
        return f"{len(value)} bytes; at most {self.max_bytes} are allowed"

    def json_screen(self) -> Refused:
        """Return a function that says why a JSON text is refused, or None; fast for most."""
        max_bytes, max_depth, max_digits = self.max_bytes, self.max_depth, self.max_number_digits
        stride, run, to_zero = self.stride, self.run, _TO_ZERO

        def refused(value: bytes) -> str | None:
            size = len(value)
            if size > max_bytes:
                return self.too_large(value)
            arrays = value.count(b"[") if _ARRAY in value else 0  # to count is ten times as dear
            shallow = (not arrays and value.rfind(b"{") <= 0) or (
                arrays + value.count(b"{") <= max_depth
            )
            short = size <= max_digits or run not in value[::stride].translate(to_zero)
            return None if shallow and short else self.too_deep_or_long(value)

        return refused

    def decimal_screen(self) -> Refused:
        """`json_screen` and, looking closely at every text, the exponents."""
        refused = self.json_screen()
        return lambda value: refused(value) or self.too_great(value)

    @property
    def stride(self) -> int:
        """How far the samples of the screen for numbers lie apart."""
        return max(1, (self.max_number_digits + 1) // _SAMPLES)

    @property
    def run(self) -> bytes:
        """What a too long number leaves among the samples, with every digit made a zero."""
        return b"0" * ((self.max_number_digits + 1) // self.stride)

    def may_hide_a_long_number(self, codes: "npt.NDArray[np.uint8]") -> bool:
        """Whether a text's bytes must be looked at closely; True is no proof. O(bytes / stride)."""
        return self.run in codes[:: self.stride].tobytes().translate(_TO_ZERO)

    def too_deep_or_long(self, value: bytes) -> str | None:
        """Look closely: why a JSON text's depth or numbers are refused, or None."""
        bare = _STRING.sub(b'""', value)
        depth = _depth_of(bare)
        if depth > self.max_depth:
            return f"nested {depth} deep; at most {self.max_depth} is allowed"
        longest = re.search(rb"(?<![0-9])[0-9]{%d,}+" % (self.max_number_digits + 1), bare)
        if longest is None:
            return None
        digits = len(longest.group())
        return f"a number of {digits} digits; at most {self.max_number_digits} are allowed"

    def too_great(self, value: bytes) -> str | None:
        """Why a JSON text's exponents are refused, or None. Looks closely at every text."""
        for found in _EXPONENT.finditer(_STRING.sub(b'""', value)):
            digits = found.group(1)
            if len(digits) > len(str(self.max_exponent)) or int(digits) > self.max_exponent:
                shown = digits[:20].decode()
                return f"an exponent of {shown}; at most {self.max_exponent} is allowed"
        return None


def _depth_of(bare: bytes) -> int:
    """How deep brackets stand within each other in a text without strings."""
    steps = _STEP[np.frombuffer(bare, np.uint8)]
    return int(np.cumsum(steps, dtype=np.int64).max(initial=0))
