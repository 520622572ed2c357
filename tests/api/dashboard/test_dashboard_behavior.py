"""The behavior of the dashboard in a browser, over a real service."""

import time
from pathlib import Path
from typing import Any

import pytest
from browser import END, ENTER, HOME, LEFT, RIGHT, TAB, Page
from command_line import call, succeeded
from dashboard_page import STEPS, opened
from measuring_ranks import measure, plan_of
from service_process import serving_here
from stocked_service import Stocked, stock

from seqplan.api.store.store import Store
from seqplan.api.store.tables import jobs

pytestmark = pytest.mark.usefixtures("clean")
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


@pytest.mark.parametrize("width", [360, 390])
def test_short_names_of_jobs_do_not_break(page: Page, monitored: Stocked, width: int) -> None:
    page.size(width, 800)
    page.open(monitored.served.url)
    page.until_text("#job-table", "waiting")
    lines = page.run(
        "return [...document.querySelectorAll('#job-table tbody a')].map(each => ["
        "each.textContent, each.getClientRects().length])"
    )
    short = [line for line in lines if line[0] != LONG]
    assert len(short) == 3
    assert all(count == 1 for _, count in short), lines


def test_keys_alone_choose_a_job_and_a_step(page: Page, monitored: Stocked) -> None:
    page.open("about:blank")
    page.open(monitored.served.url)
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


def test_the_page_refreshes_and_rests_while_hidden(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "live")
    slowest = monitored.served.ok("GET", "/v1/jobs/live/progress")["slowest"]
    measure(monitored.served, "live", [slowest + 1], 1.0)
    page.until_text("#step-name", f"^step {slowest + 2}$")
    # No window manager hides the tab here: it gets an event that it is hidden.
    hide = (
        "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    page.run(hide, True)
    page.until_text("#link", "Paused")
    measure(monitored.served, "live", [slowest + 2], 1.0)
    page.run("performance.clearResourceTimings()")
    time.sleep(5)  # more than twice the time between two questions
    requests = "return performance.getEntriesByType('resource').map(each => each.name)"
    assert page.run(requests) == []
    page.run(hide, False)
    page.until_text("#step-name", f"^step {slowest + 3}$")
    assert page.text("#link").startswith("Live")


def test_no_width_scrolls_sideways(page: Page, monitored: Stocked) -> None:
    """Opened narrow, and made wider and narrow again as a turned telephone is."""
    monitored.job(LONG, STEPS, look_ahead=STEPS)
    plan_of(monitored.served, LONG, STEPS - 1)
    for job in ("slower", LONG):
        page.size(360, 700)
        opened(page, monitored, job)
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


def test_light_and_dark_can_be_read(page: Page, monitored: Stocked) -> None:
    backgrounds = set()
    for scheme in ("light", "dark"):
        page.prefers(prefers_color_scheme=scheme)
        opened(page, monitored, "slower")
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


def test_controls_have_names(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "slower")
    page.devtools("Accessibility.enable")
    nodes = page.devtools("Accessibility.getFullAXTree")["nodes"]
    wanted = ("button", "slider", "checkbox", "combobox", "link", "img", "image")
    operable = [node for node in nodes if node.get("role", {}).get("value") in wanted]
    assert {"button", "slider", "checkbox", "combobox", "link"} <= {
        node["role"]["value"] for node in operable
    }
    assert [node for node in operable if not node.get("name", {}).get("value")] == []
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


def test_text_of_the_service_is_text(page: Page, monitored: Stocked, tmp_path: Path) -> None:
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
