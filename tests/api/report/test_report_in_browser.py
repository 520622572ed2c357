"""The report as a browser lays it out: its charts are drawn, no table is cut, no card is alone."""

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

DRAWN = """
const drawn = [...document.querySelectorAll('.chart')].map((each) => {
  const canvas = each.querySelector('canvas');
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colors = new Set(new Uint32Array(pixels.buffer)).size;
  return [canvas.ariaLabel, canvas.clientWidth <= each.clientWidth, colors];
});
return drawn.every(([, fits]) => fits) && drawn;
"""

STROKES = """
const draw = CanvasRenderingContext2D.prototype.stroke;
window.strokes = [];
CanvasRenderingContext2D.prototype.stroke = function (...path) {
  const about = this.canvas.closest('.chart')?.querySelector('script').textContent ?? '';
  if (about.includes('GPU-ms per token') && this.getLineDash) {
    strokes.push([this.strokeStyle, this.lineWidth, ...this.getLineDash()].join(' '));
  }
  return draw.apply(this, path);
};
"""

FIND = """
const chart = [...document.querySelectorAll('.chart')].find(
  (each) => each.querySelector('script').textContent.includes(arguments[0]));
"""

MIDDLE = f"""{FIND}
chart.scrollIntoView({{block: 'center'}});
const {{left, top, width, height}} = chart.querySelector('.u-over').getBoundingClientRect();
return [left + width / 2, top + height / 2];
"""

LEGEND = f"""{FIND}
const rows = [...chart.querySelectorAll('.u-series')].map(
  (each) => ['.u-label', '.u-value'].map((part) => each.querySelector(part).textContent));
return rows.every(([, value]) => value) && rows;
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


def test_every_chart_is_drawn_from_the_file_alone(page: Page, report: Path) -> None:
    page.log()  # lines of pages before
    page.open(report.as_uri())
    for width in (390, 1280):
        page.size(width, 900)
        drawn = page.until(DRAWN)
        assert len(drawn) == 5  # curves, load of two systems, gaps, planning times
        assert all(about and colors > 5 for about, _, colors in drawn)
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.log() == []


def test_every_curve_is_drawn_differently(page: Page, report: Path) -> None:
    schemes = load_shipped("llama-32b-a800-80gb").restrict(measured=True).usable(64, 32_768)
    page.open(report.as_uri())
    page.size(1280, 900)
    page.run(STROKES)
    page.size(800, 900)  # draws again
    page.until("return strokes.length >= arguments[0]", len(schemes))
    strokes = {stroke for stroke in page.run("return strokes") if " 1.75" in stroke}
    assert len(strokes) == len(schemes) >= 13


def test_a_chart_shows_the_values_under_the_pointer(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    page.size(1280, 900)
    x, y = page.run(MIDDLE, '"gap"')
    page.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown = page.until(LEGEND, '"gap"')
    gap = pipelined().ours.iterations[1].gap
    assert shown == [["step", "1"], ["gap", f"{100 * gap:.2f} %"]]


def test_charts_follow_the_theme(page: Page, report: Path) -> None:
    color = "return document.querySelector('.chart .u-marker[style*=solid]').style.borderColor"
    page.prefers(prefers_color_scheme="light")
    page.open(report.as_uri())
    light = page.until(color)
    page.prefers(prefers_color_scheme="dark")
    page.until(f"{color} !== arguments[0]", light)
    page.prefers(prefers_color_scheme="light")


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
