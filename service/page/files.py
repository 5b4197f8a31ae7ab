"""The files of the page: plain HTML, a style sheet and a script, as they lie beside this module."""

from pathlib import Path

_FOLDER = Path(__file__).parent / "assets"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# Nothing of the page comes from elsewhere, and nothing of a record becomes a part of it.
CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page_files() -> dict[str, tuple[str, bytes]]:
    """Kind and content by path."""
    found = {
        f"/{path.name}": (_KINDS[path.suffix], path.read_bytes())
        for path in sorted(_FOLDER.iterdir())
    }
    return {"/": found.pop("/status.html"), **found}
