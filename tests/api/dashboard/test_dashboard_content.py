"""The content of the dashboard in a browser, over a real service."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser import Page
from dashboard_page import STEPS, opened
from measuring_ranks import measure
from service_process import serving_here
from stocked_service import Stocked, change_rows, stock

pytestmark = pytest.mark.usefixtures("clean")
RIBBON = """
return [...document.querySelectorAll('#strategies svg text')].map(each => Number(each.textContent));
"""


def test_jobs_and_one_of_them(page: Page, monitored: Stocked) -> None:
    page.open(monitored.served.url)
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
    timeline = monitored.served.ok("GET", "/v1/jobs/live/plans/4/timeline")
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
    explained = monitored.served.send("GET", "/v1/jobs/live/plans/4/explain").body.decode()
    assert page.until_text("#why pre", "lower bound").split() == explained.split()
    page.click("#steps summary")
    rows = "return document.querySelectorAll('#steps tbody tr').length"
    assert page.until(rows) == 4 + STEPS  # they come with an event, after the click


def test_the_worst_job_comes_first(page: Page, tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        monitored = stock(served)
        for name in ("a-fine", "b-stuck", "c-failed", "d-stopped"):
            monitored.job(name, 60, look_ahead=4)
            assert served.send("GET", f"/v1/jobs/{name}/plans/3?wait=30").status == 200
        measure(served, "a-fine", range(2), 1.0)
        measure(served, "b-stuck", range(2), 1.0)
        ack = {"step": 2, "rank": 0, "digest": None}
        served.ok("POST", "/v1/jobs/b-stuck/acks", ack)
        served.ok("POST", "/v1/jobs/d-stopped/stop")
        change_rows(
            tmp_path / "s.db",
            "UPDATE ranks SET acknowledged_at = acknowledged_at - 300 "
            "WHERE job = (SELECT key FROM jobs WHERE id = 'b-stuck')",
            "UPDATE jobs SET state = 'failed', failed_step = 4, error = 'x' WHERE id = 'c-failed'",
        )
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
            opened(page, monitored, "b-stuck")
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
        monitored = stock(served)
        monitored.job("few", 2, look_ahead=2)
        assert served.send("GET", "/v1/jobs/few/plans/1?wait=30").status == 200
        opened(page, monitored, "few")
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


def test_charts_show_the_values_of_the_service(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "slower")
    last = monitored.served.ok("GET", "/v1/jobs/slower/steps")["items"][-1]
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


def test_figures_have_intervals(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "slower")
    steps = monitored.served.ok("GET", "/v1/jobs/slower/steps")["items"]
    tokens = np.array([1000 * step["tokens"] for step in steps])
    taken = np.array([step["measured_ms"] for step in steps])
    rate = tokens.sum() / taken.sum()
    half = 1.96 * len(steps) ** 0.5 * (tokens - rate * taken).std(ddof=1) / taken.sum()
    facts = page.text("#facts")
    words = f"95 % interval {rate - half:,.0f} to {rate + half:,.0f} over {STEPS} steps"
    assert f"{rate:,.0f}\nmeasured, forward and backward alone; {words}" in facts
    assert f"1.30×\n95 % interval 1.30 to 1.30 over {STEPS} steps" in facts
    opened(page, monitored, "live")
    assert "no interval: 4 steps; 16 or more give one" in page.text("#facts")


def test_partly_measured_steps_are_compared_with_no_prediction(page: Page, tmp_path: Path) -> None:
    with serving_here(tmp_path / "s.db") as served:
        monitored = stock(served)
        monitored.job("partly", 3)
        for step in range(2):
            assert served.send("GET", f"/v1/jobs/partly/plans/{step}?wait=30").status == 200
            report = {"step": step, "rank": 0, "measured_ms": 1.0}
            served.ok("POST", "/v1/jobs/partly/measurements", report)
            acks = {"step": step, "ranks": [0, 1, 2, 3], "digest": None}
            served.ok("POST", "/v1/jobs/partly/acks/many", acks)
        opened(page, monitored, "partly")
        facts = page.text("#facts")
        assert "Measured over predicted\n–\nno step measured on all ranks" in facts
        measure(served, "partly", range(2), 1.3)
        page.until_text("#facts", "Measured over predicted\n1.30×")
        page.open("about:blank")


def test_a_slow_step_does_not_flatten_the_others(page: Page, monitored: Stocked) -> None:
    """Steps that took 10 and 20 ms in turn are well apart next to one of 1,750 ms."""
    opened(page, monitored, "slower")
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


def test_the_ribbon_has_steps(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "slower")
    assert page.run(RIBBON) == [*range(STEPS)]
    page.size(390, 800)
    page.until("return document.querySelectorAll('#strategies svg text').length < 10")
    assert page.run(RIBBON) == [0, 5, 10, 15]


def test_calibration_is_reported_and_drawn(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "slower")
    calibration = monitored.served.ok("GET", "/v1/jobs/slower/calibration?points=200")
    warned = [scheme for scheme in calibration["schemes"] if scheme["warning"]]
    warnings = [line for line in page.text("#warnings").split("\n") if line]
    assert warnings == [scheme["message"] for scheme in warned]
    answer = page.text("#answer")
    measured = [
        scheme for scheme in calibration["schemes"] if scheme["error"]["recent"] is not None
    ]
    verdict = f"no. {len(warned)} of {len(measured)} schemes exceed their limits: "
    assert answer.startswith(f"Does the profile hold: {verdict}")
    worst = max(measured, key=lambda scheme: scheme["error"]["recent"] / scheme["limit"])
    assert f": {worst['scheme']} has an error of " in answer
    bars = page.run(
        "return [...document.querySelectorAll('#errors rect')].map(r => r.width.baseVal.value)"
    )
    rates = sorted(
        (scheme["error"]["recent"] / scheme["limit"], scheme["error"]["median"])
        for scheme in measured
    )[::-1]
    widest = max(error for _, error in rates)
    assert [width / max(bars) for width in bars] == pytest.approx(
        [error / widest for _, error in rates], rel=0.01
    )
    spoken = page.run("return document.querySelector('#errors svg').getAttribute('aria-label')")
    assert spoken.startswith(f"Errors by scheme. {worst['scheme']}: ")
    rows = page.text("#calibration-table tbody").split("\n")
    assert rows[0].startswith(worst["scheme"])
    assert sum("+30 %" in row for row in rows) == len(calibration["schemes"])
    assert page.text("#calibration-table").count("miscalibrated") == len(warned)
    dots = page.run("return document.querySelectorAll('#scatters circle').length")
    assert dots == sum(len(scheme["points"]) for scheme in calibration["schemes"])
    assert page.run("return document.querySelectorAll('#warnings .warning').length") == 1
    command = f"seqplan profile refit --server {monitored.served.url} --job slower -o refitted.json"
    assert page.text("#refit code") == command
    permissions = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    page.devtools("Browser.grantPermissions", permissions=permissions)
    page.click("#copy-refit")
    page.until_text("#copy-refit", "Copied")
    assert page.run("return navigator.clipboard.readText()") == command
    opened(page, monitored, "live")
    assert page.text("#warnings") == ""
    assert not page.text("#refit")
    assert page.text("#answer").startswith("Does the profile hold: yes. The largest error of ")


def test_why_the_profile_is_open_is_stated(page: Page, monitored: Stocked) -> None:
    page.open(monitored.served.url)
    for steps, measurable, why in (
        (0, 0, "No rank has measured a step yet."),
        (3, 0, "Pipelines with several stages or that share their ranks cannot be measured alone."),
        (3, 5, "No pipeline was measured by all its ranks yet."),
    ):
        counts = {"steps": {"measured": steps}, "pipelines": {"measurable": measurable}}
        text = page.run(
            "const module = document.querySelector('script[type=module]').src;"
            "return import(new URL('calibration.js', module)).then("
            f"({{ answer }}) => answer({json.dumps({**counts, 'schemes': []})}))"
        )
        assert text == f"Does the profile hold: open. {why}"


def test_revisions_are_listed_with_reasons(page: Page, monitored: Stocked) -> None:
    opened(page, monitored, "waiting")
    found = monitored.served.ok("GET", "/v1/jobs/waiting/revisions")["items"]
    rows = page.until_text("#revisions tbody", "by request").splitlines()
    wanted = [(each["step"], each["kind"], each["proposal"], "–", each["reason"]) for each in found]
    assert [tuple(row.split("\t")) for row in rows] == [
        tuple(map(str, values)) for values in reversed(wanted)
    ]
    opened(page, monitored, "live")
    assert not page.text("#revisions")
