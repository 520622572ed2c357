"""What pages are drawn with: SVG, HTML, numbers as text, and the style sheet.

Read ``svg`` (charts), ``markup`` (tables and text), ``numbers``, ``style``. All is public to
the sections.
"""
