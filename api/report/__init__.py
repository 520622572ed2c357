"""A comparison as one self-contained HTML file.

Read ``page`` (which sections there are and in which order), then any of ``sections``; ``drawing``
has their drawing tools. ``fit_page`` is a separate page for the fit of a measured profile.
"""

from seqplan.api.report.page import render

__all__ = ["render"]
