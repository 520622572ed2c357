"""Jobs as the dashboard shows them: their service, and a page that opens one."""

from browser import Page
from stocked_service import Stocked

STEPS = 16
"""Steps of a job that are planned: as many as an interval needs."""


def opened(page: Page, stocked: Stocked, job: str) -> str:
    """Open a job and wait for its figures; the text of the page."""
    page.open("about:blank")  # a change of the part after # alone would not load it again
    page.open(f"{stocked.served.url}/#job={job}")
    page.until("return document.querySelectorAll('#gantt rect.forward').length")
    return page.text("body")
