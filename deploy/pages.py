"""What the documentation site needs beyond MkDocs, which calls these functions (mkdocs.yml).

Pages of `docs/` link to files outside it: an example, the chart, the architecture. Each such file,
and what it links to in turn, becomes a page under `repository/`: no link to a file leaves the site.
"""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = PurePosixPath("docs")
UNDER = PurePosixPath("repository")  # of the site: what lies outside docs/
# The home of these is a page of the site already.
_INSTEAD = {PurePosixPath("README.md"): DOCS / "index.md"}
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", ".sh": "bash"}
_FENCED = re.compile(r"^ *```.*?^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")


class LostLink(ValueError):
    """A page links to a file that is not there, or to a folder."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every file outside `docs/` that the navigation names, or a link leads to."""
    waiting = [DOCS / file.src_uri for file in files.documentation_pages()]
    waiting += [_file_of(place) for place in _named(config.nav) if place.is_relative_to(UNDER)]
    known = set()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        if not path.is_relative_to(DOCS):
            files.append(_page(path, config))
        if path.suffix == ".md":
            waiting += _targets(path)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page, and of those added, to where their files are in the site."""
    del config, files
    place = PurePosixPath(page.file.src_uri)
    path = _file_of(place)
    if path.suffix != ".md":
        return markdown

    def moved(link: re.Match[str]) -> str:
        target = _place_of(_resolved(path, link[1]))
        return os.path.relpath(target, place.parent) + (link[2] or "")

    return _outside_fences(markdown, lambda text: _LINK.sub(moved, text))


def _named(nav: Any) -> Iterator[PurePosixPath]:
    """What a navigation names: a place, or lists and tables of them."""
    if isinstance(nav, str):
        yield PurePosixPath(nav)
    elif isinstance(nav, dict):
        yield from _named(list(nav.values()))
    else:
        for each in nav:
            yield from _named(each)


def _targets(path: PurePosixPath) -> Iterator[PurePosixPath]:
    """The files that a file of Markdown links to, by their paths in the repository."""
    text = _FENCED.sub("", (ROOT / path).read_text(encoding="utf-8"))
    for link in _LINK.finditer(text):
        yield _resolved(path, link[1])


def _resolved(path: PurePosixPath, link: str) -> PurePosixPath:
    target = PurePosixPath(os.path.normpath(path.parent / link))
    if not (ROOT / target).is_file():
        raise LostLink(f"{path} links to {target}, which is no file")
    return _INSTEAD.get(target, target)


def _place_of(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the repository is among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    return UNDER / (path if path.suffix == ".md" else f"{path}.md")


def _file_of(place: PurePosixPath) -> PurePosixPath:
    """The file of the repository whose place is this."""
    if not place.is_relative_to(UNDER):
        return DOCS / place
    path = place.relative_to(UNDER)
    return path if (ROOT / path).is_file() else path.with_suffix("")


def _page(path: PurePosixPath, config: MkDocsConfig) -> File:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.suffix != ".md":
        language = _LANGUAGES.get(path.suffix, "text")
        text = f"# {path}\n\n`````{language}\n{text.rstrip()}\n`````\n"
    return File.generated(config, _place_of(path).as_posix(), content=text)


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    """A text, changed where it is no code block."""
    changed, end = [], 0
    for fence in _FENCED.finditer(text):
        changed += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*changed, change(text[end:])])
