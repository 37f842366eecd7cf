"""Plots of what was learned."""

from .maps import embedding_map

__all__ = ["embedding_map"]
