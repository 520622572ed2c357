"""Systems, trainers, cost terms and kernels of installed packages, by their entry points."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Outcome, call, complaint, fresh_process, succeeded
from deployments import deploy

from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.profile import Profile
from seqplan.runtime.sequence_parallel.kernels.registry import list_added_kernels

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

    def find_unsupported(self, q, v, scores):
        if q.dtype != torch.float32:
            return f"the dtype is {q.dtype}"
        return super().find_unsupported(q, v, scores)


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


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an installed package, from which this process imports too."""
    folder = tmp_path_factory.mktemp("package")
    install(folder, ENTRIES, added_rules=MODULE, added_costs=COSTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder


COMPARED = ("--profile", "llama-7b-a800-80gb", "--gpus", "4", "--max-len", "8192")
BATCHES = ("--tokens", "20000", "--steps", "1", "--json")
MODEL = ("--model", "llama3-8b", "--hardware")


def write_device(folder: Path, terms: str) -> Path:
    """A device file with added cost terms."""
    path = folder / "device.json"
    path.write_text(json.dumps({"base": "h100-80gb", "cost_terms": terms.split(",")}))
    return path


def derive(folder: Path, terms: str) -> Outcome:
    options = ("--schemes", "tp1,tp2,u2", "--recompute", "full")
    device = write_device(folder, terms)
    return call("profile", "derive", *MODEL, device, *options, "-o", folder / "profile.json")


def test_added_system_is_compared(package: Path) -> None:
    done = fresh_process(
        *("compare", LENGTHS, *COMPARED, *BATCHES, "--systems", "static,halves"),
        environment={"PYTHONPATH": str(package)},
    )
    fields = json.loads(succeeded(done))
    assert [system["key"] for system in fields["systems"]][-1] == "halves"
    assert {"name": "Thirds", "why": "no thirds"} in fields["left_out"]


@pytest.mark.usefixtures("package")
def test_added_trainer_restricts_the_schemes() -> None:
    options = ("--systems", "static", "--trainer", "rings-only")
    done = call("compare", LENGTHS, *COMPARED, *BATCHES, *options)
    steps = json.loads(succeeded(done))["systems"][0]["iterations"]
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
@pytest.mark.usefixtures("package")
def test_bad_extension_is_one_line(options: tuple[str, ...], message: str) -> None:
    done = call("compare", LENGTHS, *COMPARED, *BATCHES, *options)
    assert done.code == 2
    assert message in done.err.splitlines()[-1]


@pytest.mark.usefixtures("package")
def test_added_cost_term_is_in_the_profile(tmp_path: Path) -> None:
    output = tmp_path / "profile.json"
    text = succeeded(derive(tmp_path, "input"))
    assert "note: unchecked: cost term input, which an installed package adds" in text
    document = json.loads(output.read_text())
    assert "added cost terms input" in document["source"]
    added = Profile.from_document(document, "added")
    deployment = deploy("llama3-8b", "h100-80gb", 1, loss="chunked")
    schemes = [entry.scheme for entry in added.schemes]
    plain = Profile.from_document(
        derive_profile(deployment, schemes, name="plain", modes=("full",)), "plain"
    )
    for with_term, without in zip(added.schemes, plain.schemes, strict=True):
        for length in (1024, 16_384):
            ms = [profiled.latency.micro_batch_ms([length]) for profiled in (with_term, without)]
            assert ms[0] - ms[1] == pytest.approx(5 + length / (100 * with_term.scheme.sp), rel=0.1)


@pytest.mark.usefixtures("package")
def test_added_cost_term_is_estimated(tmp_path: Path) -> None:
    load = ("--seq-len", "1024", "--batch", "8", "--json")
    peaks = []
    for device in ("h100-80gb", write_device(tmp_path, "input")):
        (estimated,) = json.loads(succeeded(call("estimate", *MODEL, device, *load)))["estimates"]
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
@pytest.mark.usefixtures("package")
def test_bad_cost_term_is_one_line(tmp_path: Path, term: str, message: str) -> None:
    assert message in complaint(derive(tmp_path, term))
    assert [path.name for path in tmp_path.iterdir()] == ["device.json"]


def test_added_kernel_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "[seqplan.kernels]\nsingle = added_kernels:KERNEL\n"
    monkeypatch.syspath_prepend(install(tmp_path, entries, added_kernels=KERNELS))
    list_added_kernels.cache_clear()
    done = call("profile", "verify", "--quick", "--checks", "attention")
    list_added_kernels.cache_clear()
    assert "kernels: cpu, single, blocks" in succeeded(done)


def test_bad_kernel_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = "[seqplan.kernels]\nsingle = added_kernels:SingleKernel\n"
    monkeypatch.syspath_prepend(install(tmp_path, entries, added_kernels=KERNELS))
    with pytest.raises(ValueError, match=r"kernel 'single': its entry point must be a Kernel"):
        list_added_kernels.__wrapped__()
