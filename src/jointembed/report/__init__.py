"""Plots of what was learned, and the page that holds them together."""

from .contact import contact_sheet
from .maps import embedding_map
from .page import write_report

__all__ = ["contact_sheet", "embedding_map", "write_report"]
