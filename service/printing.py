"""Text from outside on a terminal: nothing of it reaches that as a command. Pure.

What does not print (control characters, marks of writing direction) is escaped.
"""

from topology.masking import mask


def escaped(text: str, *, keeping: str = "") -> str:
    """The text without secrets, everything escaped that does not print, but for `keeping`."""
    return "".join(
        each if each.isprintable() or each in keeping else each.encode("unicode_escape").decode()
        for each in mask(text)
    )
