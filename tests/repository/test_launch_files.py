"""``examples/launch``: the script trains on two machines; the other files call it as it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from free_port import free_port
from plan_builder import write_file
from small_plans import small_plans

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "examples" / "launch"
SCRIPT = "examples/launch/torchrun.sh"
MOST_SECONDS = 240


def start_node(settings: dict[str, str]) -> subprocess.Popen[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", SCRIPT],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_nodes_train_together(tmp_path: Path) -> None:
    steps = 2
    plans = write_file(tmp_path / "plans.jsonl", small_plans(steps, 2))
    settings = {
        "PLANS": str(plans),
        "CHECKPOINTS": str(tmp_path / "checkpoints"),
        "DEVICE": "cpu",
        "NODES": "2",
        "GPUS": "1",
        "HEAD": "127.0.0.1",
        "PORT": str(free_port()),
    }
    nodes = [start_node(settings) for _ in range(2)]
    try:
        written = [node.communicate(timeout=MOST_SECONDS) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], written
    lines = [line for out, _ in written for line in out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["step"] for line in lines] == list(range(steps))


@pytest.mark.parametrize("name", ["PLANS", "CHECKPOINTS"])
def test_a_missing_setting_is_named(name: str) -> None:
    node = start_node({"PLANS": "plans.jsonl", "CHECKPOINTS": "checkpoints", name: ""})
    _, err = node.communicate(timeout=MOST_SECONDS)
    assert node.returncode == 1
    assert re.search(rf": {name}: (a plan file, or the URL of a job|a folder that )", err)
    assert err.count("\n") == 1


def test_scripts_are_bash() -> None:
    for name in ("torchrun.sh", "slurm.sbatch"):
        subprocess.run(["bash", "-n", LAUNCH / name], check=True)
        assert os.access(LAUNCH / name, os.X_OK)


def test_settings_of_the_other_files_are_those_of_the_script() -> None:
    read = set(re.findall(r"\$\{?([A-Z]+)\b", (ROOT / SCRIPT).read_text("utf-8"))) - {"BASH"}
    sky = yaml.safe_load((LAUNCH / "skypilot.yaml").read_text("utf-8"))
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text("utf-8"))
    slurm = (LAUNCH / "slurm.sbatch").read_text("utf-8")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    given = {
        "skypilot.yaml": set(re.findall(r"\b([A-Z]+)=", sky["run"])),
        "kubernetes.yaml": {variable["name"] for variable in container["env"]},
        "slurm.sbatch": set(re.findall(r"\b([A-Z]+)=", slurm)) & read,
    }
    for name, settings in given.items():
        assert {"PLANS", "CHECKPOINTS", "NODES", "GPUS", "HEAD"} <= settings <= read, name
        assert SCRIPT in (LAUNCH / name).read_text("utf-8")
    values = {variable["name"]: variable["value"] for variable in container["env"]}
    spec, name = job["spec"], job["metadata"]["name"]
    assert spec["completions"] == spec["parallelism"] == int(values["NODES"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(values["GPUS"])
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert values["HEAD"] == f"{name}-0.{service['metadata']['name']}"
    options = re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", slurm, re.MULTILINE)
    assert dict(options)["nodes"] == values["NODES"]
