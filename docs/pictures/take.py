"""The pictures of the README: ``python docs/pictures/take.py`` takes them anew, in minutes.

Needs chromium and chromedriver. The report is one of ``seqplan compare``. The dashboard shows a
service whose ranks report what the plans predict, give or take 4 %: a picture of the page, not of
a measurement.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "api"))

from browser import Page, browser, missing  # noqa: E402
from measuring_ranks import plan_of  # noqa: E402
from service_process import Served, serving  # noqa: E402

DATA = ROOT / "examples" / "data" / "code.npy"
PROFILE, GPUS, MAX_LEN, TOKENS = "llama-32b-a800-80gb", 64, 32768, 200_000
STEPS, DONE = 60, 44
MOST_BYTES = 200_000


def main() -> None:
    """Take both pictures."""
    if lacking := missing():
        sys.exit(lacking)
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "browser") as page:
        take_report(page, Path(folder))
        take_dashboard(page, Path(folder))


def take_report(page: Page, folder: Path) -> None:
    """The top of a report: the answer, and what every system takes."""
    report = folder / "report.html"
    setting = ["--profile", PROFILE, "--gpus", GPUS, DATA, "--max-len", MAX_LEN]
    setting += ["--tokens", TOKENS, "--steps", 5, "-o", report]
    command = [sys.executable, "-m", "seqplan.api.cli", "compare", *map(str, setting)]
    subprocess.run(command, check=True, cwd=ROOT)
    page.size(1120, 990)
    page.open(report.as_uri())
    save(page, "report.png")


def take_dashboard(page: Page, folder: Path) -> None:
    """A job under way, ``DONE`` of its steps done."""
    with serving("--store", folder / "store.db", "--port", 0) as served:
        lengths = served.send("POST", "/v1/lengths", DATA.read_bytes()).json["id"]
        wanted = {"gpus": GPUS, "max_len": MAX_LEN, "tokens": TOKENS}
        proposal = served.proposal({"profile": PROFILE, "lengths": lengths, **wanted})
        job = {"id": "llama-32b", "proposal": proposal, "lengths": lengths, "steps": STEPS}
        served.ok("POST", "/v1/jobs", job)
        train(served, "llama-32b")
        plan_of(served, "llama-32b", DONE + 7)  # as far ahead as it goes
        page.size(1120, 1345)
        page.open(f"{served.url}/#job=llama-32b")
        page.until("return document.querySelectorAll('#gantt rect.forward').length")
        page.until_text("#step-name", f"^step {DONE}$")
        page.run(
            "scrollBy(0, document.querySelector('#job-title').getBoundingClientRect().top - 16)"
        )
        save(page, "dashboard.png")


def train(served: Served, job: str) -> None:
    """Every rank reports its part of the predicted time, some per cent off, for ``DONE`` steps."""
    noise = random.Random(0)
    for step in range(DONE):
        plan = plan_of(served, job, step)
        factor = noise.uniform(0.96, 1.04)
        took = dict.fromkeys(range(plan.world_size), 0.0)
        for pipeline in plan.pipelines:
            for rank in pipeline.ranks:
                took[rank] += factor * sum(batch.cost_ms for batch in pipeline.micro_batches)
        times = [took[rank] or None for rank in range(plan.world_size)]
        acknowledgement = {"step": step, "ranks": list(took), "digest": None, "measured_ms": times}
        served.ok("POST", f"/v1/jobs/{job}/acks/many", acknowledgement)


def save(page: Page, name: str) -> None:
    """What the window shows, as a picture beside this file."""
    path = Path(__file__).parent / name
    page.screenshot(path, whole=False)
    size = path.stat().st_size
    print(f"{path.relative_to(ROOT)}: {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{name} is larger than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
