"""The site of these pages: ``./run docs`` builds it into out/site, offline and strictly.

Parts that follow from the code are generated while a page is read: a page has the line
``<!-- generated: PART -->`` in their place. See ``generate.py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

import generate

from seqplan import __version__

project = "seqplan"
author = "the seqplan developers"
version = release = __version__
html_title = f"seqplan {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

# Nothing is loaded from another host: furo has no web fonts, and the search runs in the browser.
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["static", "../api/dashboard/vendor", "../api/report/drawing/charts.js"]
html_css_files = ["uPlot.min.css", "charts.css"]
html_js_files = [("uPlot.iife.min.js", {"defer": "defer"}), ("charts.js", {"defer": "defer"})]
highlight_language = "text"
pygments_style = "friendly"
pygments_dark_style = "monokai"


def insert_generated_parts(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the marks of generated parts in a page by their text."""
    source[0] = re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda mark: generate.PARTS[mark[1]](),
        source[0],
        flags=re.MULTILINE,
    )


def setup(app: Sphinx) -> None:
    """Connect the generator."""
    app.connect("source-read", insert_generated_parts)
