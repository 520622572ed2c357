"""What pages are drawn with: SVG, HTML, numbers as text, and the style sheet.

Read ``svg`` (charts), ``markup`` (tables and text), ``numbers``, ``bars``, ``style``. All is
public to the sections.
"""

__all__ = [
    "bars",
    "markup",
    "numbers",
    "style",
    "svg",
]
