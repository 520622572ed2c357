"""The interface's OpenAPI document, tested with generated requests."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stocked_service import Stocked, stock

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


@pytest.mark.parametrize(
    ("known", "least"), [(False, 1000), (True, 480)], ids=["any names", "names that exist"]
)
def test_generated_requests(stocked: Stocked, tmp_path: Path, known: bool, least: int) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("no schemathesis: install seqplan[dev]")
    served = stocked.served
    settings, asked_for = "", []
    if known:
        stocked = stock(stocked.served)  # the other run may have deleted what it listed
        job = stocked.job("fuzzed", steps=4, look_ahead=4)
        assert served.send("GET", f"/v1/jobs/{job}/plans/3?wait=60").status == 200
        # Routes without names are requested in the other run, deleted names would not exist.
        asked_for = ["--include-path-regex", r"\{", "--exclude-method", "DELETE"]
        names = {"job": job, "proposal": stocked.proposal, "lengths": stocked.lengths}
        names |= {"profile": "llama-7b-a800-80gb"}
        fixed = "".join(f'"path.{name}" = "{value}"\n' for name, value in names.items())
        settings = f'[parameters]\n{fixed}"path.step" = 1\n"path.rank" = 1\n'
    (tmp_path / "schemathesis.toml").write_text(settings)
    program = "import sys; from schemathesis.cli import schemathesis; sys.exit(schemathesis())"
    completed = subprocess.run(
        [sys.executable, "-c", program, "run", f"{served.url}/openapi.json",
         "--checks", ",".join(CHECKS), "--max-examples", "2", "--seed", "1",
         "--continue-on-failure", "--no-color", "--request-timeout", "60", *asked_for],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout
    counts = re.search(r"(\d+) generated, (\d+) passed", completed.stdout)
    assert counts is not None, completed.stdout
    assert int(counts[1]) >= least
    assert served.send("GET", "/readyz").status == 200
