"""The code blocks of the documentation: which there are, and the commands in them."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: its page, the line in which its text begins, its language, its text."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def place(self):
        return f"{name_of(self.page)}:{self.line}"

    @property
    def head(self):
        """What it is known by, wherever on its page it stands: the page, and its first line."""
        return name_of(self.page), self.text.partition("\n")[0]

    @property
    def commands(self):
        """The lines that a reader is to type."""
        return [line[2:] for line in self.text.splitlines() if line.startswith("$ ")]


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def all_pages():
    """Every page that the site has, and those beside the code."""
    found = [*ROOT.glob("*.md")]
    for folder in ("docs", "examples", "helm", "deploy"):
        found += (ROOT / folder).rglob("*.md")
    return sorted(found)


def blocks(page, *languages):
    """A page's blocks, of some languages or of all; in a list they are indented."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        indent, language, inner = match.groups()
        if not languages or language in languages:
            lines = [line.removeprefix(indent) for line in inner.splitlines(keepends=True)]
            yield Block(page, text.count("\n", 0, match.start(3)) + 1, language, "".join(lines))


def commands(page):
    """The commands of a page, from top to bottom."""
    return [each for block in blocks(page, "console") for each in block.commands]


def inline_commands(page):
    """The commands that a page names in its sentences."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"`((?:headrace|make|python -m)\s[a-z-][^`]*)`", text)
    return [" ".join(command.split()) for command in found]


def is_played(command):
    """Whether a command is given on real servers, in the place of the operators' pages.

    Of the others, tests of what they are about give those that can be given; `test_snippets.py`
    parses all.
    """
    if re.search(r"dead-letters|--embedded|--engine|ZOOKEEPER__PASSWORD|__FILE=", command):
        return False
    of_operators = r"^(\S+=\S+ )*headrace .*(orders|payments):topology|^curl -s localhost:"
    return bool(re.search(of_operators, command))


def played_pages():
    """The pages with commands that are given on real servers."""
    return [page for page in all_pages() if any(map(is_played, commands(page)))]
