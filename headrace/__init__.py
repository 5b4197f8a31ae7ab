"""The public surface of Headrace: all that a user imports."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace import _startup as _startup  # first: before Arrow, and before a foreign package

if TYPE_CHECKING:
    from headrace._surface import *  # noqa: F403
    from headrace._surface import __all__ as __all__
else:

    def __getattr__(name: str) -> Any:
        """Import all names when the first one is used: `headrace --help` needs none."""
        surface = import_module("headrace._surface")
        if name not in {*surface.__all__, "__all__"}:
            raise AttributeError(f"module 'headrace' has no attribute '{name}'", name=name)
        globals().update({each: getattr(surface, each) for each in surface.__all__})
        return getattr(surface, name)

    def __dir__() -> list[str]:
        return [*globals(), *__getattr__("__all__")]
