"""The steps that the dashboard shows are those of the service, after any pause."""

from collections.abc import Iterable

import pytest
from browser import Page
from dashboard_page import opened
from measuring_ranks import plan_of
from service_process import Served
from stocked_service import WORLD, Stocked

pytestmark = pytest.mark.usefixtures("clean")
HIDE = (
    "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
    "document.dispatchEvent(new Event('visibilitychange'))"
)
MEASURED = """
const cells = [...document.querySelectorAll('#steps tbody tr > :nth-child(3)')];
return cells.map(cell => cell.textContent).reverse().join(' ') === arguments[0];
"""
"""Whether the table, oldest step first, has these measured times."""


def acknowledge(served: Served, job: str, steps: Iterable[int], measured_ms: float) -> None:
    """Have all ranks do steps in this time."""
    body = {"ranks": [*range(WORLD)], "digest": None, "measured_ms": [measured_ms] * WORLD}
    for step in steps:
        served.ok("POST", f"/v1/jobs/{job}/acks/many", {**body, "step": step})


def test_steps_done_while_the_page_was_hidden_are_shown(page: Page, monitored: Stocked) -> None:
    job, served = monitored.job("hidden", 45, look_ahead=45), monitored.served
    plan_of(served, job, 44)
    opened(page, monitored, job)
    page.click("#steps summary")
    acknowledge(served, job, [0], 70.0)
    page.until(MEASURED, " ".join(["70", *["–"] * 44]))
    page.run(HIDE, True)
    page.until_text("#link", "Paused")
    acknowledge(served, job, range(1, 45), 70.0)
    page.run(HIDE, False)
    page.until(MEASURED, " ".join(["70"] * 45))
    # A trainer that began again at step 3, which took longer now.
    acknowledge(served, job, [3], 90.0)
    page.run("const now = Date.now; Date.now = () => now.call(Date) + 61000")
    page.until(MEASURED, " ".join(["70"] * 3 + ["90"] + ["70"] * 41))


def test_window_has_the_steps_that_were_measured(page: Page, monitored: Stocked) -> None:
    job, served = monitored.job("far-ahead", 130, look_ahead=130), monitored.served
    plan_of(served, job, 129)
    acknowledge(served, job, range(5), 70.0)
    opened(page, monitored, job)
    page.run(
        "const window = document.querySelector('#window'); window.value = '100';"
        "window.dispatchEvent(new Event('change'))"
    )
    page.until("return document.querySelector('#step').max === '104'")
    assert "over 5 steps" in page.text("#facts") or "no interval: 5 steps" in page.text("#facts")
    acknowledge(served, job, range(5, 125), 70.0)
    page.until("return document.querySelector('#step').max === '104'")
    page.until_text("#facts", "over 100 steps")
    page.run(
        "const window = document.querySelector('#window'); window.value = '200';"
        "window.dispatchEvent(new Event('change'))"
    )
    page.until_text("#facts", "over 125 steps")


def test_time_left_counts_the_steps_of_the_job_alone(page: Page, monitored: Stocked) -> None:
    served = monitored.served
    body = {"id": "later", "proposal": monitored.proposal, "look_ahead": 4, "steps": 20}
    continues = {"job": monitored.job("first", 20, look_ahead=20), "step": 18}
    plan_of(served, "first", 19)
    served.ok("POST", "/v1/jobs", {**body, "continues": continues})
    predicted = [plan_of(served, "later", step).predicted_ms for step in (18, 19)]
    opened(page, monitored, "later")
    progress = served.ok("GET", "/v1/jobs/later/progress")
    assert (progress["first_step"], progress["slowest"]) == (18, -1)
    facts = page.text("#facts").splitlines()
    assert facts[facts.index("Time left") + 1] == f"{2 * max(predicted) / 1000:.0f} s"
