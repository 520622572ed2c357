"""The interface's OpenAPI document, tested with generated requests."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stocked_service import Stocked

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "negative_data_rejection",
    "allow_header_conformance",
    "unsupported_method",
)


RUN = """
import gc, json, sys
gc.disable()
from schemathesis.cli import schemathesis
codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        schemathesis(arguments)
    except SystemExit as ended:
        codes.append(ended.code)
sys.exit(any(codes))
"""
"""The tool is imported once for both runs, which takes longer than a run."""


def test_generated_requests(stocked: Stocked, tmp_path: Path) -> None:
    """First with names that exist, then with any names, which may delete those."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("no schemathesis: install seqplan[dev]")
    served = stocked.served
    job = stocked.job("fuzzed", steps=4, look_ahead=4)
    assert served.send("GET", f"/v1/jobs/{job}/plans/3?wait=60").status == 200
    names = {"job": job, "proposal": stocked.proposal, "lengths": stocked.lengths}
    names |= {"profile": "llama-7b-a800-80gb"}
    fixed = "".join(f'"path.{name}" = "{value}"\n' for name, value in names.items())
    known, unknown = tmp_path / "known.toml", tmp_path / "unknown.toml"
    known.write_text(f'[parameters]\n{fixed}"path.step" = 1\n"path.rank" = 1\n')
    unknown.write_text("")
    options = ["run", f"{served.url}/openapi.json", "--checks", ",".join(CHECKS), "--seed", "1"]
    options += ["--max-examples", "3", "--continue-on-failure", "--no-color"]
    options += ["--request-timeout", "60"]
    # Routes without names are requested in the other run, deleted names would not exist.
    named = ["--include-path-regex", r"\{", "--exclude-method", "DELETE"]
    runs = [["--config-file", str(known), *options, *named]]
    runs.append(["--config-file", str(unknown), *options])
    completed = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(runs)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert completed.returncode == 0, completed.stdout
    counts = re.findall(r"(\d+) generated, \d+ passed", completed.stdout)
    assert len(counts) == 2, completed.stdout
    assert int(counts[0]) >= 640
    assert int(counts[1]) >= 1200
    assert served.send("GET", "/readyz").status == 200
