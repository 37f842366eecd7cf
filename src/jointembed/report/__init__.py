"""Plots of what was learned."""

from .contact import contact_sheet
from .maps import embedding_map

__all__ = ["contact_sheet", "embedding_map"]
