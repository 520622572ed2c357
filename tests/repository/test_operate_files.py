"""``examples/operate``: every metric in it is one of a running service; systemd reads the unit."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from service_process import serving_here
from stocked_service import WORLD, stock

from seqplan.api.cli import build_parser

OPERATE = Path(__file__).parents[2] / "examples" / "operate"
NAME = re.compile(r"\b((?:seqplan|process)_[a-z_]+)")
OF_PROMETHEUS = {"job", "instance", "exported_job", "le"}
"""Labels that it adds; exported_job is made of a metric's ``job``."""


def expressions() -> Iterator[str]:
    rules = yaml.safe_load((OPERATE / "alerts.yml").read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
            assert {"summary", "description"} == set(rule["annotations"])
            assert rule["labels"]["severity"] in ("critical", "warning", "info")
            assert re.fullmatch(r"\d+m", rule.get("for", "1m"))
            yield rule["expr"]
    board = json.loads((OPERATE / "grafana.json").read_text("utf-8"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) == 13
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The metrics of a service whose job was acknowledged, with their labels."""
    with serving_here(tmp_path_factory.mktemp("service") / "s.db") as served:
        stocked = stock(served)
        job = stocked.job("j", 4, look_ahead=4)
        stocked.revise(stocked.job("revised", 40))
        served.send("GET", f"/v1/jobs/{job}/plans/3?wait=60")
        for step in range(3):
            for rank in range(WORLD):
                ack = {"step": step, "rank": rank, "digest": None, "measured_ms": 9e9}
                served.ok("POST", f"/v1/jobs/{job}/acks", ack)
        served.send("GET", f"/v1/jobs/{job}/calibration")
        text = served.send("GET", "/metrics").body.decode()
    labels_by_metric: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            labels_by_metric.setdefault(name, set())
            if kind == "histogram":
                labels_by_metric |= {f"{name}_{end}": set() for end in ("bucket", "sum", "count")}
        elif not line.startswith("#"):
            name, _, rest = line.partition("{")
            name = name.split()[0]
            labels_by_metric.setdefault(name, set()).update(re.findall(r'(\w+)="', rest))
    return labels_by_metric


def test_every_metric_is_of_the_service(labels: dict[str, set[str]]) -> None:
    used = {name for expression in expressions() for name in NAME.findall(expression)}
    assert len(used) >= 15
    assert used - set(labels) == set()
    assert {"job"} <= labels["seqplan_last_acknowledgement_timestamp_seconds"]


def test_every_label_is_of_its_metric(labels: dict[str, set[str]]) -> None:
    known = set().union(*labels.values()) | OF_PROMETHEUS
    for expression in expressions():
        for name, selector in re.findall(r"\b(\w+)\{([^}]*)\}", expression):
            wanted = set(re.findall(r'(\w+)=~?"', selector))
            assert wanted <= labels.get(name, set()) | OF_PROMETHEUS, expression
        for grouped in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
            assert {part.strip() for part in grouped.split(",")} <= known, expression
        assert expression.count("(") == expression.count(")")


def test_the_unit_starts_the_service(tmp_path: Path) -> None:
    text = (OPERATE / "seqplan.service").read_text("utf-8")
    program, *arguments = shlex.split(re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)[1])
    args = build_parser({}).parse_args(arguments)
    directory = re.search(r"^StateDirectory=(.*)$", text, re.MULTILINE)
    assert args.store.startswith(f"/var/lib/{directory[1]}/")
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    stand_in = tmp_path / "seqplan"
    stand_in.write_text("#!/bin/sh\n")
    stand_in.chmod(0o755)
    unit = tmp_path / "seqplan.service"
    unit.write_text(text.replace(program, str(stand_in)))
    completed = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    assert str(unit) not in completed.stderr
    assert completed.returncode == 0, completed.stderr
    unit.write_text(unit.read_text().replace("Restart=always", "Restart=sometimes"))
    completed = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    assert "restart specifier" in completed.stderr
