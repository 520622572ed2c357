"""The report as a browser lays it out: no table is cut if there is room, no card is alone."""

from dataclasses import replace
from pathlib import Path

import pytest
from browser import Page
from comparisons import pipelined

from seqplan.api.report import render
from seqplan.costs.shipped.catalogue import load_shipped

NAME = "A published system of a long name, with our balancing"

CUT = """
document.querySelectorAll('details').forEach((each) => { each.open = true; });
return [...document.querySelectorAll('.scroll')]
  .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.ariaLabel);
"""

CARDS = """
return [...document.querySelectorAll('.facts div')].map((each) => {
  const {left, right, top} = each.getBoundingClientRect();
  return [left, right, top].map(Math.round);
});
"""

SHADOWS = """
const seen = getComputedStyle(document.querySelector(`.scroll[aria-label="${arguments[0]}"]`));
return [seen.backgroundImage.split('gradient').length - 1, seen.backgroundAttachment];
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of many systems with long names."""
    comparison = pipelined()
    others = [
        replace(system, name=f"{NAME} {at}") for at in range(4) for system in comparison.systems[1:]
    ]
    path = tmp_path_factory.mktemp("report") / "report.html"
    profile = load_shipped("llama-32b-a800-80gb").restrict(measured=True)
    path.write_text(
        render(replace(comparison, gpus=64, systems=(comparison.ours, *others)), profile)
    )
    return path


def test_tables_take_the_room_there_is(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    page.size(1280, 900)
    assert page.run(CUT) == []
    page.size(390, 844)
    cut = page.run(CUT)
    assert "Spread over the steps" in cut
    for name in cut:  # the shadow at an edge beyond which there is more
        assert page.run(SHADOWS, name) == [4, "local, local, scroll, scroll"]


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_the_page_itself_does_not_scroll_sideways(page: Page, report: Path, width: int) -> None:
    page.open(report.as_uri())
    page.size(width, 844)
    page.run(CUT)
    assert page.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("systems", [1, 2, 3])
def test_no_card_is_left_alone(page: Page, tmp_path: Path, systems: int) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(replace(pipelined(), systems=pipelined().systems[:systems])))
    page.open(path.as_uri())
    for width in (390, 1280):
        page.size(width, 844)
        cards = page.run(CARDS)
        assert len(cards) == systems + 1
        right = max(card[1] for card in cards)
        assert cards[-1][1] == right, (width, cards)
