"""A run folder as one self-contained HTML page."""

from preheat.report.page import render, write

__all__ = ["render", "write"]
