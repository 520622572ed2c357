"""Rows of a figure: a name, a value, and a track in which pieces lie. The browser lays them out."""

from __future__ import annotations

from collections.abc import Iterable

from seqplan.api.report.drawing.markup import element, text


def figure(title: str, caption: str, *content: str) -> str:
    """A figure with its title above and its caption below."""
    return element(
        "figure", element("h3", text(title)), *content, element("figcaption", text(caption))
    )


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Squares of a class with what they mean."""
    return element(
        "ul",
        *(element("li", element("i", class_=class_), text(name)) for class_, name in entries),
        class_="legend",
    )


def row(name: str, value: str, *tracks: str, strong: bool = False) -> str:
    """A name and a value, with tracks below them."""
    return element(
        "div",
        element("span", text(name), class_="name"),
        element("span", text(value)),
        *tracks,
        class_="row strong" if strong else "row",
    )


def track(*pieces: str) -> str:
    """The width of the figure, in which pieces have their places."""
    return element("div", *pieces, class_="track", aria_hidden="true")


def piece(class_: str, left: float, width: float | None = None, title: str | None = None) -> str:
    """A part of a track, from ``left`` on, as shares of its width; ``title`` is under a pointer."""
    place = f"left:{percent_of(left)}"
    if width is not None:
        place += f";width:{percent_of(width)}"
    return element("i", class_=class_, style=place, title=title)


def scale(*marks: str) -> str:
    """Texts below a track, spread from its begin to its end."""
    return element("div", *(element("span", text(mark)) for mark in marks), class_="scale")


def percent_of(share: float) -> str:
    """A share as CSS writes it, in hundredths of a percent."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"
