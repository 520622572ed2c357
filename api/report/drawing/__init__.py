"""What pages are drawn with: charts, rows of bars, tables, numbers as text, and the style sheet.

Read ``charts`` (charts with axes, which ``charts.js`` draws by uPlot), ``rows`` (bars, laid out by
the browser), ``markup`` (tables and text), ``numbers``, ``page.css``. All is public to the
sections.
"""
