"""The report as one HTML page: its head, its sections in reading order, its foot."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from seqplan.api.report.drawing.markup import element, lead, text
from seqplan.api.report.sections.curves import curves
from seqplan.api.report.sections.gantt import gantt
from seqplan.api.report.sections.headline import headline
from seqplan.api.report.sections.lengths import lengths
from seqplan.api.report.sections.load import load
from seqplan.api.report.sections.planning import planning
from seqplan.api.report.sections.strategies import strategies
from seqplan.api.report.sections.sweeps import sweeps
from seqplan.api.report.sections.throughput import throughput
from seqplan.costs.profile import Profile
from seqplan.planner.comparison.results import Comparison
from seqplan.planner.comparison.sweep import Sweep
from seqplan.plans.version import VERSION

WITHOUT_SCRIPTS = element(
    "noscript", element("p", "Charts with axes need JavaScript; the tables have their numbers.")
)


def render(
    comparison: Comparison, profile: Profile | None = None, swept: Sequence[Sweep] = ()
) -> str:
    """The comparison as a self-contained HTML document, without outside resources.

    ``profile`` adds the fitted curves of the schemes that fit, ``swept`` what changes with a
    setting. The same input gives the same text.
    ``ValueError`` for a comparison without systems or steps, or with unequal numbers of steps.
    """
    if not comparison.systems or not comparison.ours.iterations:
        raise ValueError("nothing to report: the comparison has no systems or no steps")
    steps = len(comparison.ours.iterations)
    for system in comparison.systems:
        if len(system.iterations) != steps:
            raise ValueError(
                f"system {system.name!r} has {len(system.iterations)} steps, but ours has {steps}"
            )
    parts = (
        ("summary", "Summary", headline(comparison)),
        ("throughput", "Throughput", throughput(comparison)),
        ("sweeps", "What if", sweeps(swept, comparison.profile)),
        ("data", "Data", lengths(comparison)),
        ("curves", "Curves", "" if profile is None else curves(comparison, profile)),
        ("strategies", "Strategies", strategies(comparison)),
        ("gantt", "Gantt", gantt(comparison)),
        ("load", "Load", load(comparison)),
        ("planning", "Planning", planning(comparison)),
    )
    links = [
        element("li", element("a", name, href=f"#{ident}")) for ident, name, part in parts if part
    ]
    contents = element("nav", element("ul", *links), aria_label="Contents")
    return document(
        f"{comparison.profile} on {comparison.gpus:,} GPUs",
        _setting(comparison) + contents,
        [part for _, _, part in parts],
        f"seqplan {VERSION}. Simulated on profile {comparison.profile}.",
        before=[_read("report/drawing/patterns.svg")],
    )


def document(
    title: str, below: str, sections: Sequence[str], foot: str, *, before: Sequence[str] = ()
) -> str:
    """A whole page: its style sheet, title, sections, foot, and the scripts of its charts.

    ``below``: markup below the title; ``before``: what stands before all that is shown.
    """
    styles = [_read(name) for name in ("dashboard/vendor/uPlot.min.css", "report/drawing/page.css")]
    scripts = [
        _read(name) for name in ("dashboard/vendor/uPlot.iife.min.js", "report/drawing/charts.js")
    ]
    lines = (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{text(title)}</title>",
        *("<style>", *styles, "</style>"),
        "</head>",
        *("<body>", WITHOUT_SCRIPTS, *before),
        element("header", element("h1", text(title)), below),
        element("main", "\n".join(sections)),
        element("footer", lead(foot)),
        *("<script>", *scripts, "</script>"),
        "</body>",
        "</html>",
    )
    return "\n".join(lines) + "\n"


def _read(name: str) -> str:
    """Return a file of the package, as ``report/drawing/page.css``."""
    return files("seqplan.api").joinpath(name).read_text("utf-8").strip()


def _setting(comparison: Comparison) -> str:
    sentence = (
        f"{comparison.hardware}; {len(comparison.ours.iterations):,} steps of "
        f"{comparison.tokens:,} tokens, sequences up to {comparison.max_len:,} tokens, seed "
        f"{comparison.seed}. Every figure is simulated on profile {comparison.profile}."
    )
    return lead(sentence)
