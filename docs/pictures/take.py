"""The pictures of the pages: ``python docs/pictures/take.py`` takes them anew, in a minute.

With ``--compare`` they are compared with the committed ones instead. Needs chromium and
chromedriver. The report is one of ``seqplan compare``. The dashboard shows a
service whose ranks report what the plans predict, give or take 4 %: a picture of the page, not of
a measurement.
"""

from __future__ import annotations

import base64
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
PICTURES = Path(__file__).parent
NAMES = ("report.png", "dashboard.png")

MOST_DIFFERENT = 0.03
"""Share of pixels that may differ: measured planning times and moments are in the dashboard."""

DIFFERENCE = """
const load = url => new Promise((done, fail) => {
  const image = new Image();
  image.onload = () => done(image);
  image.onerror = () => fail(new Error("no picture"));
  image.src = url;
});
const [first, second] = await Promise.all([...arguments].map(load));
if (first.width !== second.width || first.height !== second.height) return 1;
const pixels = image => {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  return context.getImageData(0, 0, image.width, image.height).data;
};
const [a, b] = [pixels(first), pixels(second)];
let different = 0;
for (let at = 0; at < a.length; at += 4) {
  const far = [0, 1, 2].some(part => Math.abs(a[at + part] - b[at + part]) > 48);
  different += far ? 1 : 0;
}
return different / (a.length / 4);
"""


def main() -> None:
    """Take both pictures; with ``--compare``, fail if they are not the committed ones."""
    if lacking := missing():
        sys.exit(lacking)
    compare = "--compare" in sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, browser(Path(folder) / "browser") as page:
        output = Path(folder) if compare else PICTURES
        take_report(page, Path(folder), output)
        take_dashboard(page, Path(folder), output)
        differing = [name for name in NAMES if compare and differs(page, output / name, name)]
    if differing:
        sys.exit(f"{', '.join(differing)}: not of this code. Run python docs/pictures/take.py")


def differs(page: Page, path: Path, name: str) -> bool:
    """Return whether a picture is another one than that which is committed."""
    urls = [
        f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"
        for file in (path, PICTURES / name)
    ]
    page.open("about:blank")
    share = float(page.run(DIFFERENCE, *urls))
    print(f"{name}: {share:.2%} of the pixels differ")
    return share > MOST_DIFFERENT


def take_report(page: Page, folder: Path, output: Path) -> None:
    """The top of a report: the answer, and what every system takes."""
    report = folder / "report.html"
    setting = ["--profile", PROFILE, "--gpus", GPUS, DATA, "--max-len", MAX_LEN]
    setting += ["--tokens", TOKENS, "--steps", 16, "-o", report]
    command = [sys.executable, "-m", "seqplan.api.cli", "compare", *map(str, setting)]
    subprocess.run(command, check=True, cwd=ROOT)
    page.size(1120, 990)
    page.open(report.as_uri())
    save(page, output / "report.png")


def take_dashboard(page: Page, folder: Path, output: Path) -> None:
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
        save(page, output / "dashboard.png")


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


def save(page: Page, path: Path) -> None:
    """Save the window as a picture."""
    page.screenshot(path, whole=False)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > MOST_BYTES:
        sys.exit(f"{path.name} is larger than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
