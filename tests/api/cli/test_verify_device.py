"""``seqplan profile verify``: every check on this machine's CPU, a wrong kernel, bad input."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import call, complaint, nothing_left, succeeded
from jsonschema import validate
from trainers import launched

from seqplan.api.cli.profile.verify_device import CHECKS
from seqplan.profiler.verify import attention_check, verification
from seqplan.profiler.verify.attention_cases import AttentionCase, attention_cases
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.sequence_parallel.kernels import CpuKernel, PartialGradients

PATIENCE_S = 60.0
SCHEMA = Path(__file__).resolve().parents[3] / "docs" / "verified.schema.json"


def test_every_check_on_a_cpu(tmp_path: Path) -> None:
    output = tmp_path / "verified.json"
    text = succeeded(call("profile", "verify", "--quick", "-o", output))
    assert "no limit was missed" in text
    document = json.loads(output.read_text())
    validate(document, json.loads(SCHEMA.read_text("utf-8")))
    assert document["versions"]["torch"] == torch.__version__
    assert {"date", "device", "command", "versions"} <= set(document)
    assert [check["check"] for check in document["checks"]] == list(CHECKS)
    assert set(CHECKS) == set(verification.CHECKS)
    for check in document["checks"]:
        assert check["figures"] or check["skipped"], check["check"]
        assert f"\n{check['check']}: " in text
    attention = figures_of(document, "attention")
    for dtype in ("bf16", "fp32"):
        for scores in ("causal", "window", "chunk", "soft cap", "sinks", "passed", "gathered"):
            for tensor in ("out", "dq", "dk", "dv"):
                ring = [
                    figure
                    for figure in attention
                    if figure["group"].startswith(f"{dtype}: rings")
                    and figure["name"].startswith(f"{scores}, ")
                    and figure["name"].endswith(f"ring 4: {tensor}")
                ]
                assert ring, (dtype, scores, tensor)
    assert all("most" in figure for figure in attention)


def figures_of(document: dict[str, Any], name: str) -> list[dict[str, Any]]:
    (figures,) = [check["figures"] for check in document["checks"] if check["check"] == name]
    return figures


def test_ranks_attend_as_one_process_does(tmp_path: Path) -> None:
    output = tmp_path / "verified.json"
    ranks = launched(2, "seqplan.api.cli", ["profile", "verify", "--quick", "-o", output])
    try:
        printed = "".join(rank.output.read() for rank in ranks)
        for rank in ranks:
            rank.process.join(PATIENCE_S)
        assert [rank.process.exitcode for rank in ranks] == [0, 0], printed
    finally:
        for rank in ranks:
            rank.end()
    assert printed.count("no limit was missed") == 1
    document = json.loads(output.read_text())
    assert document["ranks"] == 2
    skipped = {check["check"] for check in document["checks"] if check["skipped"]}
    assert skipped == set(CHECKS) - {"ranks"}
    groups = {figure["group"].split(":")[0] for figure in figures_of(document, "ranks")}
    assert groups == {
        f"{dtype} on {scheme}" for dtype in ("bf16", "fp32") for scheme in ("u2", "r2")
    }


class WrongKernel(CpuKernel):
    """Loses a thousandth of the gradients of values."""

    def backward(self, *arguments: Any) -> Iterator[PartialGradients]:
        for gradients in super().backward(*arguments):
            yield gradients._replace(dv=0.999 * gradients.dv)


def test_the_requested_kernel_is_verified_and_stated(tmp_path: Path) -> None:
    output = tmp_path / "verified.json"
    options = ("--quick", "--checks", "rates", "-o", output)
    succeeded(call("profile", "verify", *options, "--kernel", "blocks"))
    document = json.loads(output.read_text())
    assert document["kernel"] == "blocks"
    assert document["kernels"]["fa2"] == "the device is cpu"
    assert document["kernels"]["cpu"] is None
    rejected = call("profile", "verify", *options, "--kernel", "fa3")
    assert "kernel 'fa3' does not support this attention: the device is cpu" in complaint(rejected)


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def one_case(settings: VerifySettings) -> list[AttentionCase]:
        cases = attention_cases(settings)
        return [replace(next(case for case in cases if case.dtype == "fp32"), rings=(2,))]

    monkeypatch.setattr(attention_check, "attention_cases", one_case)
    monkeypatch.setattr(VerifySettings, "choose_kernel", lambda *_: WrongKernel())
    output = tmp_path / "verified.json"
    outcome = call("profile", "verify", "--quick", "--checks", "attention", "-o", output, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.out) == json.loads(output.read_text())
    missed = [
        figure for figure in figures_of(json.loads(outcome.out), "attention") if figure["missed"]
    ]
    assert {figure["name"].split(": ")[-1] for figure in missed} == {"dv"}
    assert all(figure["value"] == pytest.approx(1e-3, rel=0.1) for figure in missed)
    shown = call("profile", "verify", "--quick", "--checks", "attention")
    assert shown.code == 1
    assert "missed: 1\n  attention: fp32: fused call against fp64: causal, packed" in shown.out


def test_a_device_that_is_not_there_is_named(output: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    for command in (("verify",), ("measure", "--model", "small")):
        line = complaint(call("profile", *command, "--device", "cuda", "-o", output))
        assert "no CUDA device is there" in line
        nothing_left(output)
