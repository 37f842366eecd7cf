"""Images in: sources that read them, views that augment them."""

from typing import TYPE_CHECKING, Any

from .shapes import render_shapes
from .sources import Source, open_source, splits

if TYPE_CHECKING:
    from .views import Views

__all__ = ["Source", "Views", "open_source", "render_shapes", "splits"]


def __getattr__(name: str) -> Any:
    # Reading images needs no torchvision, which takes longer to import than torch itself.
    if name == "Views":
        from .views import Views

        return Views
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
