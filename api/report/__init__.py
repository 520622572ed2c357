"""A comparison as one self-contained HTML file."""

from seqplan.api.report.page import render

__all__ = ["render"]
