"""The documentation site is built without a warning, leads everywhere, and needs nobody else."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
# What a browser fetches by itself, as `<a>` it does not.
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
NOT_FETCHED = {"canonical", "prev", "next", "alternate"}  # relations of a <link> that only tell
FENCE = re.compile(r"^ *```\w*\n.*?^ *```$", re.DOTALL | re.MULTILINE)


def build(root, site):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


class Html(HTMLParser):
    """Notes all that a page makes a browser fetch, and counts its blocks and tables."""

    def __init__(self, page):
        super().__init__()
        self.fetched = []
        self.blocks = self.tables = 0
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.blocks += tag == "pre"
        self.tables += tag == "table"
        where = values.get(FETCHED.get(tag, ""), "")
        if where and not NOT_FETCHED & set(values.get("rel", "").split()):
            self.fetched.append(where)


@pytest.fixture(scope="module")
def pages(site):
    return {page: Html(page) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}


def test_a_browser_fetches_nothing_from_elsewhere(site, pages):
    elsewhere = [
        (page.name, where)
        for page, html in pages.items()
        for where in html.fetched
        if urlsplit(where).netloc
    ]
    assert elsewhere == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", sheet.read_text("utf-8"))
    for page, html in pages.items():
        for where in html.fetched:
            assert (page.parent / unquote(urlsplit(where).path)).is_file(), where


def test_site_has_every_page_with_code_and_tables(pages, site):
    for source in sorted((ROOT / "docs").rglob("*.md")):
        text = source.read_text(encoding="utf-8")
        name = "index" if source.stem == "README" else source.stem
        html = pages[site / source.relative_to(ROOT / "docs").with_name(f"{name}.html")]
        assert html.blocks == len(FENCE.findall(text)), source
        rest = FENCE.sub("", text)
        assert html.tables == len(re.findall(r"^\|( *:?-+:? *\|)+$", rest, re.MULTILINE)), source


def test_broken_links_and_orphans_fail_the_build(tmp_path):
    folders = ("docs", "deploy", "examples", "helm")
    for folder in folders:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "docs/quickstart.md").open("a", encoding="utf-8") as page:
        page.write("\n[nowhere](scale.md#no-such-place)\n")
    (tmp_path / "docs/lonely.md").write_text("# Lonely\n", encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no-such-place" in done.stderr
    assert "lonely.md" in done.stderr
