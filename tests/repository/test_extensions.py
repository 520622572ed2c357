"""Systems, trainers, cost terms and kernels of installed packages, by their entry points."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile

LENGTHS = Path(__file__).parents[2] / "examples" / "data" / "code.npy"

MODULE = """
from dataclasses import replace

from seqplan.planner.proposal.backends import BACKENDS
from seqplan.planner.systems.setting import Skipped
from seqplan.planner.systems.static_best import static_best

BACKEND = replace(BACKENDS["megatron"], name="rings-only", axes=frozenset({"ring"}))


def halves(setting):
    (static, *_) = static_best(setting, [])
    return [replace(static, key="halves", name="Halves"), Skipped("thirds", "Thirds", "no thirds")]


def wrong(setting):
    return ["nothing"]
"""

COSTS = """
import numpy as np

from seqplan.costs.analytic.deployment import CostTerm


def stage_ms(deployment, scheme, lengths):
    return 5 + lengths.sum(axis=-1) / (100 * scheme.sp)


TERM = CostTerm("input", stage_ms, lambda deployment, tp: 1000.0 * tp)
NEGATIVE = CostTerm("negative", lambda deployment, scheme, lengths: -lengths.sum(axis=-1))
FLAT = CostTerm("flat", lambda deployment, scheme, lengths: np.zeros(7))
UNBOUNDED = CostTerm("unbounded", stage_ms, lambda deployment, tp: float("inf"))
TAKEN = CostTerm("launch", stage_ms)
"""

KERNELS = """
import torch

from seqplan.runtime.sequence_parallel.kernels.cpu import CpuKernel


class SingleKernel(CpuKernel):
    name = "single"

    def find_unsupported(self, q, v, softcap):
        if q.dtype != torch.float32:
            return f"the dtype is {q.dtype}"
        return super().find_unsupported(q, v, softcap)


KERNEL = SingleKernel()
"""

ENTRIES = """\
[seqplan.systems]
halves = added_rules:halves
wrong = added_rules:wrong
broken = added_rules:absent
[seqplan.trainers]
rings-only = added_rules:BACKEND
no-backend = added_rules:halves
[seqplan.cost_terms]
input = added_costs:TERM
negative = added_costs:NEGATIVE
flat = added_costs:FLAT
unbounded = added_costs:UNBOUNDED
launch = added_costs:TAKEN
other-name = added_costs:TERM
"""


def install(folder: Path, entries: str, **modules: str) -> Path:
    """Install a package into a folder, which is the path for imports."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    facts = folder / "added_rules-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: added-rules\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entries)
    return folder


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an installed package."""
    return install(tmp_path, ENTRIES, added_rules=MODULE, added_costs=COSTS)


def seqplan(package: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "seqplan", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )


def compare(package: Path, *options: str) -> subprocess.CompletedProcess[str]:
    settings = ("--profile", "llama-7b-a800-80gb", "--gpus", "4", "--max-len", "8192")
    batches = ("--tokens", "20000", "--steps", "1", "--json")
    return seqplan(package, "compare", LENGTHS, *options, *settings, *batches)


def derive(package: Path, terms: str) -> subprocess.CompletedProcess[str]:
    model = ("--model", "llama3-8b", "--hardware", "h100-80gb", "--schemes", "tp1,tp2,u2")
    options = ("--recompute", "full", "--cost-terms", terms, "-o", package / "profile.json")
    return seqplan(package, "profile", "derive", *model, *options)


def test_added_system_is_compared(package: Path) -> None:
    done = compare(package, "--systems", "static,halves")
    fields = json.loads(done.stdout)
    assert [system["key"] for system in fields["systems"]][-1] == "halves"
    assert {"name": "Thirds", "why": "no thirds"} in fields["left_out"]


def test_added_trainer_restricts_the_schemes(package: Path) -> None:
    done = compare(package, "--systems", "static", "--trainer", "rings-only")
    steps = json.loads(done.stdout)["systems"][0]["iterations"]
    degrees = {(s["tp"], s["pp"], s["ulysses"]) for step in steps for s in step["schemes"]}
    assert degrees == {(1, 1, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--systems", "quarters"), "unknown system 'quarters'; there are one-layout, static"),
        (("--systems", "broken"), "seqplan.systems 'broken': added_rules:absent cannot be loaded"),
        (("--systems", "wrong"), "system 'wrong': its entry point must return ComparedSystem"),
        (("--trainer", "nemo"), "argument --trainer: invalid choice: 'nemo'"),
        (("--trainer", "no-backend"), "its entry point must be a TrainingBackend"),
    ],
)
def test_bad_extension_is_one_line(package: Path, options: tuple[str, ...], message: str) -> None:
    done = compare(package, *options)
    lines = [line for line in done.stderr.splitlines() if "seqplan" in line]
    assert done.returncode == 2
    assert message in lines[-1]
    assert "Traceback" not in done.stderr


def test_added_cost_term_is_in_the_profile(package: Path) -> None:
    done = derive(package, "input")
    assert "note: unchecked: cost term input, which an installed package adds" in done.stdout
    document = json.loads((package / "profile.json").read_text())
    assert "added cost terms input" in document["source"]
    added = Profile.from_document(document, "added")
    deployment = Deployment(
        cluster=ClusterHardware(DEVICES["h100-80gb"], 1, 8),
        sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
        loss="chunked",
    )
    schemes = [entry.scheme for entry in added.schemes]
    plain = Profile.from_document(
        derive_profile(deployment, schemes, name="plain", modes=("full",)), "plain"
    )
    for with_term, without in zip(added.schemes, plain.schemes, strict=True):
        for length in (1024, 16_384):
            ms = [profiled.latency.micro_batch_ms([length]) for profiled in (with_term, without)]
            assert ms[0] - ms[1] == pytest.approx(5 + length / (100 * with_term.scheme.sp), rel=0.1)


def test_added_cost_term_is_estimated(package: Path) -> None:
    model = ("--model", "llama3-8b", "--hardware", "h100-80gb", "--seq-len", "1024")
    peaks = []
    for options in ((), ("--cost-terms", "input")):
        done = seqplan(package, "estimate", *model, "--batch", "8", "--json", *options)
        (estimated,) = json.loads(done.stdout)["estimates"]
        peaks.append(estimated["peak_bytes"])
    assert estimated["terms_ms"]["input"] == pytest.approx(5 + 1024 / 100)
    assert peaks[1] - peaks[0] == 1024 * 32 * 1000


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ("absent", "unknown cost term: 'absent'. Installed packages add: flat, input, launch"),
        ("other-name", "cost term 'other-name': its entry point must be a CostTerm of this name"),
        ("input,input", "cost terms input,input: a name is repeated"),
        ("negative", "cost term 'negative': stage_ms is negative, infinite or NaN"),
        ("flat", "cost term 'flat': stage_ms returns shape (7,) for lengths of shape"),
        ("unbounded", "cost term 'unbounded': layer_bytes is inf"),
        ("launch", "cost term 'launch': the analytic model has it"),
    ],
)
def test_bad_cost_term_is_one_line(package: Path, term: str, message: str) -> None:
    done = derive(package, term)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_added_kernel_comes_first(tmp_path: Path) -> None:
    package = install(
        tmp_path, "[seqplan.kernels]\nsingle = added_kernels:KERNEL\n", added_kernels=KERNELS
    )
    done = seqplan(package, "profile", "verify", "--quick", "--checks", "attention")
    assert done.returncode == 0
    assert "kernels: cpu, single, blocks" in done.stdout


def test_bad_kernel_is_one_line(tmp_path: Path) -> None:
    entries = "[seqplan.kernels]\nsingle = added_kernels:SingleKernel\n"
    package = install(tmp_path, entries, added_kernels=KERNELS)
    done = seqplan(package, "profile", "verify", "--quick", "--checks", "attention")
    assert done.returncode == 2
    assert "kernel 'single': its entry point must be a Kernel" in done.stderr.splitlines()[-1]
