"""A comparison as one self-contained HTML file.

Read ``page`` (which sections there are and in which order), then any of ``sections``; ``drawing``
has what they are drawn with. ``fit_page`` is a page of its own, for the fit of a measured profile.
"""

from seqplan.api.report.page import render

__all__ = ["render"]
