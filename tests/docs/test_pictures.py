"""The pictures of the concept pages are text, legible on light and dark, and stand alone."""

import re
from xml.etree import ElementTree as ET

import pytest

from tests.docs.blocks import ROOT, all_pages

FOLDER = ROOT / "docs/pictures"
PICTURES = sorted(FOLDER.glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def lightness(colour):
    """Of `#rrggbb`: 0 is black, 1 is white (relative luminance, WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted((lightness(one), lightness(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_text_of_pictures_is_legible(picture):
    """So it does not matter whether the page around it is light or dark."""
    root = ET.fromstring(picture.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    _, _, width, height = root.attrib["viewBox"].split()
    ground = next(iter(root.iter(f"{SVG}rect")))
    assert (ground.get("width"), ground.get("height")) == (width, height)
    grounds = {each.attrib["fill"] for each in root.iter(f"{SVG}rect")}
    style = "".join(each.text or "" for each in root.iter(f"{SVG}style"))
    inks = set(re.findall(r"(?:text|\.small) \{[^}]*fill: (#[0-9a-f]{6})", style))
    assert len(inks) == 2
    assert all(contrast(ink, each) >= 4.5 for ink in inks for each in grounds)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_pictures_describe_themselves_and_fetch_nothing(picture):
    text = picture.read_text(encoding="utf-8")
    root = ET.fromstring(text)  # noqa: S314 - our own file
    for tag in ("title", "desc"):
        assert root.findtext(f"{SVG}{tag}", "").strip()
    assert not re.search(r"<script|<image|href|url\((?!#)", text)


def test_pictures_are_on_a_page_with_alternative_text():
    shown = {
        (page.parent / target).resolve(): words
        for page in all_pages()
        for words, target in re.findall(r"!\[([^\]]*)\]\(([^)]+\.svg)\)", page.read_text("utf-8"))
    }
    assert shown.keys() == set(PICTURES)
    assert all(shown.values())
