"""The dashboard as a browser shows it, over a real service."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import END, ENTER, HOME, LEFT, RIGHT, TAB, Page
from command_line import call, succeeded
from measuring_ranks import measure, plan_of
from service_process import serving_here
from stocked_service import Stocked, stock

from seqplan.api.store.store import Store
from seqplan.api.store.tables import jobs

STEPS = 14
LONG = "a-name-as-long-as-names-of-jobs-may-become.2026-11-21.second-try"

CONTRAST = """
const [selector, property] = arguments;
const seen = (element) => getComputedStyle(element);
const luminance = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map((each) => {
    const share = each / 255;
    return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const element = document.querySelector(selector);
let behind = element;
while (seen(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
const both = [seen(element)[property], seen(behind).backgroundColor].map(luminance);
return (Math.max(...both) + 0.05) / (Math.min(...both) + 0.05);
"""


RIBBON = """
return [...document.querySelectorAll('#strategies svg text')].map(each => Number(each.textContent));
"""


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory, page: Page) -> Iterator[Stocked]:
    """Jobs ``live``, ``waiting`` for its ranks, and ``slower``, with slow ranks.

    Ranks of ``slower`` took 1.3 times the prediction, and planning its first step took long."""
    store = tmp_path_factory.mktemp("dashboard") / "store.db"
    with serving_here(store) as served:
        stocked = stock(served)
        stocked.job("live", 60, look_ahead=STEPS)
        stocked.job("slower", STEPS, look_ahead=STEPS)
        stocked.job("waiting", 60, look_ahead=2)
        measure(served, "live", range(4), 1.0)
        measure(served, "slower", range(STEPS), 1.3)
        with sqlite3.connect(store) as database:
            database.execute(
                "UPDATE plans SET planning_ms = CASE WHEN step = 0 THEN 1750 "
                "ELSE 10 + 10 * (step % 2) END "
                "WHERE job = (SELECT key FROM jobs WHERE id = 'slower')"
            )
        database.close()
        yield stocked


@pytest.fixture(autouse=True)
def clean(page: Page) -> Iterator[None]:
    """A wide, light page before; nothing to complain of in the console after."""
    page.size(1280, 900)
    page.prefers()
    page.log()
    yield
    assert page.log() == []
    page.open("about:blank")


def opened(page: Page, stocked: Stocked, job: str) -> str:
    """Open a job and wait for its figures; the text of the page."""
    page.open("about:blank")  # a change of the part after # alone would not load it again
    page.open(f"{stocked.served.url}/#job={job}")
    page.until("return document.querySelectorAll('#gantt rect.forward').length")
    return page.text("body")


def test_jobs_and_one_of_them(page: Page, stocked: Stocked) -> None:
    page.open(stocked.served.url)
    text = page.until_text("#job-table", "slower")
    row = next(line for line in text.splitlines() if line.startswith("slower"))
    cells = row.split("\t")
    assert cells[1].removeprefix("◆ miscalibrated, ") == "planned"
    assert cells[2] == f"{STEPS - 1} of {STEPS - 1}"
    assert re.fullmatch(r"\d+ (s|min) ago", cells[3])
    row = next(line for line in text.splitlines() if line.startswith("live"))
    cells = row.split("\t")
    assert cells[1].removeprefix("▲ stuck, ") == f"running, {STEPS} steps ahead"
    assert cells[2] == "3 of 59"
    row = next(line for line in text.splitlines() if line.startswith("waiting"))
    assert row.split("\t")[:2] == ["waiting", "planning"]  # no rank has acknowledged a step
    page.click('a[href="#job=live"]')
    page.until("return document.querySelectorAll('#gantt rect.forward').length")
    assert page.text("#job-title") == "Job live"
    assert page.run("return document.querySelectorAll('#charts canvas').length") == 3
    timeline = stocked.served.ok("GET", "/v1/jobs/live/plans/4/timeline")
    passes = [
        timed_pass for p in timeline["pipelines"] for stage in p["stages"] for timed_pass in stage
    ]
    drawn = page.run(
        "return ['forward', 'backward'].map("
        "kind => document.querySelectorAll(`#gantt rect.${kind}`).length)"
    )
    assert drawn == [sum(timed_pass[0] == kind for timed_pass in passes) for kind in "FB"]
    assert page.text("#step-name") == "step 4"  # the slowest rank has done 3
    page.click("#why summary")
    explained = stocked.served.send("GET", "/v1/jobs/live/plans/4/explain").body.decode()
    assert page.until_text("#why pre", "lower bound").split() == explained.split()
    page.click("#steps summary")
    rows = "return document.querySelectorAll('#steps tbody tr').length"
    assert page.until(rows) == 4 + STEPS  # they come with an event, after the click


def test_the_worst_job_comes_first(page: Page, tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        for name in ("a-fine", "b-stuck", "c-failed", "d-stopped"):
            stocked.job(name, 60, look_ahead=4)
            assert served.send("GET", f"/v1/jobs/{name}/plans/3?wait=30").status == 200
        measure(served, "a-fine", range(2), 1.0)
        measure(served, "b-stuck", range(2), 1.0)
        ack = {"step": 2, "rank": 0, "digest": None}
        served.ok("POST", "/v1/jobs/b-stuck/acks", ack)
        served.ok("POST", "/v1/jobs/d-stopped/stop")
        with sqlite3.connect(tmp_path / "s.db") as database:
            database.execute(
                "UPDATE ranks SET acknowledged_at = acknowledged_at - 300 "
                "WHERE job = (SELECT key FROM jobs WHERE id = 'b-stuck')"
            )
            database.execute(
                "UPDATE jobs SET state = 'failed', failed_step = 4, error = 'x' "
                "WHERE id = 'c-failed'"
            )
        database.close()
        ack = {"step": 2, "rank": 0, "digest": None}
        served.ok("POST", "/v1/jobs/a-fine/acks", ack)  # just now
        page.open(served.url)
        page.until_text("#job-table", "d-stopped")
        rows = page.text("#job-table tbody").splitlines()
        names = [line.split("\t")[0] for line in rows if line[:2] in ("a-", "b-", "c-", "d-")]
        assert names == ["c-failed", "b-stuck", "a-fine", "d-stopped"]
        text = page.text("#job-table tbody")
        for words in ("✖ failed", "▲ stuck, running", "ranks 1, 2, 3", "5 min ago", "■ stopped"):
            assert words in text, (words, text)
        # A sign and a word, and a color: three ways to see it.
        colors = page.run(
            "return [...document.querySelectorAll('#job-table .state')]"
            ".map(each => getComputedStyle(each).color)"
        )
        assert colors[0] == colors[1] != colors[2] != colors[3]
        for width, name in ((1280, "wide"), (390, "narrow")):
            page.size(width, 900)
            opened(page, stocked, "b-stuck")
            facts = page.text("#facts")
            for words in (
                "▲ stuck",
                "5 min ago",
                "ranks 1, 2, 3",
                "Tokens per second",
                "Time left",
            ):
                assert words in facts, (words, facts)
            page.screenshot(tmp_path / f"{name}.png")
            assert page.run("return document.documentElement.scrollWidth") <= width
        page.size(1280, 900)
        page.run(
            "const only = document.querySelector('#only'); only.value = 'stopped';"
            "only.dispatchEvent(new Event('change'))"
        )
        page.until(
            "return document.querySelectorAll('#job-table tbody tr').length === 1"
            " && document.querySelector('#job-table tbody').textContent.includes('d-stopped')"
        )
        page.open("about:blank")  # it must not request anything of a service that has ended


def test_steps_on_axes_are_whole(page: Page, tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        stocked = stock(served)
        stocked.job("few", 2, look_ahead=2)
        assert served.send("GET", "/v1/jobs/few/plans/1?wait=30").status == 200
        opened(page, stocked, "few")
        splits = page.run(
            "const seen = []; const write = CanvasRenderingContext2D.prototype.fillText;"
            " CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {"
            "  seen.push(text); return write.call(this, text, ...rest) };"
            " document.querySelector('#charts').style.width = '700px';"
            " return new Promise(done => setTimeout(() => {"
            "  CanvasRenderingContext2D.prototype.fillText = write; done(seen) }, 500))"
        )
        assert {"0", "1"} <= set(splits)
        assert not [words for words in splits if re.fullmatch(r"0\.\d+", words)]
        page.open("about:blank")


def test_charts_show_the_values_of_the_service(page: Page, stocked: Stocked) -> None:
    opened(page, stocked, "slower")
    last = stocked.served.ok("GET", "/v1/jobs/slower/steps")["items"][-1]
    text = page.text("#charts").replace(",", "")
    for name in ("predicted_ms", "measured_ms", "lower_bound_ms"):
        assert f"{last[name]:.4g}" in text or f"{last[name]:.0f}" in text, (name, text)
    inked = page.run(
        "return [...document.querySelectorAll('#charts canvas')].map(canvas => {"
        " const {width, height} = canvas;"
        " const data = canvas.getContext('2d').getImageData(0, 0, width, height).data;"
        " return new Set(new Uint32Array(data.buffer)).size })"
    )
    assert all(colors > 3 for colors in inked), inked


def test_a_slow_step_does_not_flatten_the_others(page: Page, stocked: Stocked) -> None:
    """Steps that took 10 and 20 ms in turn are well apart next to one of 1,750 ms."""
    opened(page, stocked, "slower")
    heights = page.run(
        "const canvas = document.querySelectorAll('#charts canvas')[2], {width, height} = canvas;"
        "const line = getComputedStyle(document.documentElement).getPropertyValue('--ours').trim();"
        "const wanted = [1, 3, 5].map(at => parseInt(line.slice(at, at + 2), 16));"
        "const half = Math.floor(width / 2);"
        "const {data} = canvas.getContext('2d').getImageData(half, 0, width - half, height);"
        "const rows = [];"
        "for (let y = 0; y < height; y += 1) for (let x = 0; x < width - half; x += 1) {"
        "  const at = 4 * (y * (width - half) + x);"
        "  if (wanted.every((value, of) => data[at + of] === value)) { rows.push(y); break; }"
        "}"
        "return [rows[0], rows.at(-1)]"
    )
    assert heights[1] - heights[0] > 12, heights


def test_the_ribbon_has_steps(page: Page, stocked: Stocked) -> None:
    opened(page, stocked, "slower")
    assert page.run(RIBBON) == [*range(STEPS)]
    page.size(390, 800)
    page.until("return document.querySelectorAll('#strategies svg text').length < 10")
    assert page.run(RIBBON) == [0, 5, 10]


@pytest.mark.parametrize("width", [360, 390])
def test_short_names_of_jobs_do_not_break(page: Page, stocked: Stocked, width: int) -> None:
    page.size(width, 800)
    page.open(stocked.served.url)
    page.until_text("#job-table", "waiting")
    lines = page.run(
        "return [...document.querySelectorAll('#job-table tbody a')].map(each => ["
        "each.textContent, each.getClientRects().length])"
    )
    short = [line for line in lines if line[0] != LONG]
    assert len(short) == 3
    assert all(count == 1 for _, count in short), lines


def test_keys_alone_choose_a_job_and_a_step(page: Page, stocked: Stocked) -> None:
    page.open("about:blank")
    page.open(stocked.served.url)
    page.until_text("#job-table", "slower")
    focused = "return document.activeElement.id || document.activeElement.textContent"
    for _ in range(10):
        page.press(TAB)
        outline = page.run("return getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid", page.run(focused)
        if page.run(focused) == "slower":
            break
    else:
        pytest.fail("the job cannot be reached by Tab")
    page.press(ENTER)
    page.until_text("#job-title", "slower")
    page.until("return document.querySelectorAll('#gantt rect.forward').length")
    for _ in range(20):
        page.press(TAB)
        if page.run(focused) == "step":
            break
    else:
        pytest.fail("the steps cannot be reached by Tab")
    page.press(HOME)
    page.until_text("#step-name", "^step 0$")
    assert page.run("return document.querySelector('#before').disabled")
    assert not page.run("return document.querySelector('#follow').checked")
    page.press(RIGHT, RIGHT, RIGHT, LEFT)
    page.until_text("#step-name", "^step 2$")
    page.until("return document.querySelector('#gantt svg').ariaLabel?.startsWith('Step 2:')")
    assert (
        page.run("return document.querySelector('#step').getAttribute('aria-valuetext')")
        == "step 2"
    )
    page.press(END)
    page.until_text("#step-name", f"^step {STEPS - 1}$")


def test_calibration_is_reported_and_drawn(page: Page, stocked: Stocked) -> None:
    opened(page, stocked, "slower")
    calibration = stocked.served.ok("GET", "/v1/jobs/slower/calibration?points=200")
    warned = [scheme for scheme in calibration["schemes"] if scheme["warning"]]
    warnings = [line for line in page.text("#warnings").split("\n") if line]
    assert warnings == [scheme["message"] for scheme in warned]
    rows = page.text("#calibration-table tbody").split("\n")
    assert sum("+30%" in row for row in rows) == len(calibration["schemes"])
    assert page.text("#calibration-table").count("miscalibrated") == len(warned)
    dots = page.run("return document.querySelectorAll('#scatters circle').length")
    assert dots == sum(len(scheme["points"]) for scheme in calibration["schemes"])
    assert page.run("return document.querySelectorAll('#warnings .warning').length") == 1
    command = f"seqplan profile refit --server {stocked.served.url} --job slower -o refitted.json"
    assert page.text("#refit code") == command
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.devtools("Browser.grantPermissions", permissions=permissions)
    page.click("#copy-refit")
    page.until_text("#copy-refit", "Copied")
    assert page.run("return navigator.clipboard.readText()") == command
    opened(page, stocked, "live")
    assert page.text("#warnings") == ""
    assert not page.text("#refit")


def test_the_page_refreshes_and_rests_while_hidden(page: Page, stocked: Stocked) -> None:
    opened(page, stocked, "live")
    slowest = stocked.served.ok("GET", "/v1/jobs/live/progress")["slowest"]
    measure(stocked.served, "live", [slowest + 1], 1.0)
    page.until_text("#step-name", f"^step {slowest + 2}$")
    # No window manager hides the tab here: it gets an event that it is hidden.
    hide = (
        "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.run(hide, True)
    page.until_text("#link", "Paused")
    measure(stocked.served, "live", [slowest + 2], 1.0)
    page.run("performance.clearResourceTimings()")
    time.sleep(5)  # more than twice the time between two questions
    requests = "return performance.getEntriesByType('resource').map(each => each.name)"
    assert page.run(requests) == []
    page.run(hide, False)
    page.until_text("#step-name", f"^step {slowest + 3}$")
    assert page.text("#link").startswith("Live")


def test_no_width_scrolls_sideways(page: Page, stocked: Stocked) -> None:
    """Opened narrow, and made wider and narrow again as a turned telephone is."""
    stocked.job(LONG, STEPS, look_ahead=STEPS)
    plan_of(stocked.served, LONG, STEPS - 1)
    for job in ("slower", LONG):
        page.size(360, 700)
        opened(page, stocked, job)
        page.click("#why summary")
        page.click("#steps summary")
        page.until_text("#why pre", "lower bound")
        for width in (360, 768, 390):
            page.size(width, 700)
            for scheme in ("light", "dark"):
                page.prefers(prefers_color_scheme=scheme, prefers_reduced_motion="reduce")
                wide = page.run(
                    "return new Promise(done => requestAnimationFrame(() => "
                    "requestAnimationFrame(() => done(document.documentElement.scrollWidth))))"
                )
                assert wide <= width, (job, scheme, wide)


def test_light_and_dark_can_be_read(page: Page, stocked: Stocked) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.prefers(prefers_color_scheme=scheme)
        opened(page, stocked, "slower")
        backgrounds.add(page.run("return getComputedStyle(document.body).backgroundColor"))
        for selector in (
            "body",
            "#link",
            "#warnings p",
            "a",
            "#calibration-note",
            "thead th",
            ".facts dt",
        ):
            assert page.run(CONTRAST, selector, "color") >= 4.5, (scheme, selector)
        for selector in ("#gantt text", "#gantt text.soft"):
            assert page.run(CONTRAST, selector, "fill") >= 4.5, (scheme, selector)
    assert len(backgrounds) == 2


def test_controls_have_names(page: Page, stocked: Stocked) -> None:
    opened(page, stocked, "slower")
    page.devtools("Accessibility.enable")
    nodes = page.devtools("Accessibility.getFullAXTree")["nodes"]
    wanted = ("button", "slider", "checkbox", "combobox", "link", "img", "image")
    operable = [node for node in nodes if node.get("role", {}).get("value") in wanted]
    assert {"button", "slider", "checkbox", "combobox", "link"} <= {
        node["role"]["value"] for node in operable
    }
    unnamed = [node for node in operable if not node.get("name", {}).get("value")]
    assert unnamed == []
    page.devtools("Accessibility.disable")


def test_a_token_is_requested_and_kept_for_the_session(page: Page, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    text = succeeded(call("serve", "--store", store, "--add-token", "reader")).strip()

    def rejected() -> list[str]:
        """Return the console's lines, all of which are rejected requests."""
        log = page.log()
        assert all("401 (Unauthorized)" in line for line in log), log
        return log

    with serving_here(store) as served:
        page.open(served.url)
        page.until("return !document.querySelector('#token-form').hidden")
        assert page.run("return document.activeElement.id") == "token"
        assert page.text("#main") == ""
        page.type("#token", "wrong" + ENTER)
        page.until_text("#token-why", "does not know this token")
        assert len(rejected()) == 2
        page.type("#token", text)
        page.click("#token-form button")
        page.until_text("#no-jobs", "No jobs yet")
        assert page.run("return [sessionStorage.length, localStorage.length, document.cookie]") == [
            *(1, 0, "")
        ]
        assert text not in page.run("return location.href + document.documentElement.outerHTML")
        page.command("POST", "/refresh")
        page.until_text("#no-jobs", "No jobs yet")
        page.click("#forget")
        page.until("return !document.querySelector('#token-form')?.hidden")
        assert page.run("return sessionStorage.length") == 0
        assert len(rejected()) == 1
        page.type("#token", "not one ✓" + ENTER)
        page.until_text("#token-why", "does not know this token")


def test_text_of_the_service_is_text(page: Page, stocked: Stocked, tmp_path: Path) -> None:
    markup = '<img src=x id=evil onerror=alert(1)> & "<b>"'
    with serving_here(tmp_path / "s.db") as served:
        stock(served).job("failed", 3)
        plan_of(served, "failed", 2)
    store = Store(str(tmp_path / "s.db"))
    with store.writing() as connection:
        jobs.settle_job(connection, "failed", state="failed", failed_step=2, error=markup)
    store.close()
    with serving_here(tmp_path / "s.db") as served:
        page.open(f"{served.url}/#job=failed")
        assert markup in page.until_text("#warnings", "cannot be planned")
        assert page.run("return document.querySelector('#evil')") is None
        page.open(f"{served.url}/?again#job=%3Cb%3Enone")
        page.until_text("#warnings", "there is no job <b>none")
        page.open("about:blank")  # which sends no more requests: the log is whole
        assert all("404 (Not Found)" in line for line in page.log())


def test_a_service_that_goes_away_and_comes_back(page: Page, tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        port = int(served.url.rpartition(":")[2])
        page.open(served.url)
        page.until_text("#link", "Live")
    page.until_text("#link", "No answer since .*cannot be reached")
    with serving_here(tmp_path / "s.db", port=port):
        page.until_text("#link", "Live")
        page.open("about:blank")
    log: list[Any] = page.log()
    assert all("ERR_CONNECTION_REFUSED" in line or "Failed to fetch" in line for line in log), log
