"""All checks of a device in order, and their document."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import torch

from seqplan.plans.version import VERSION
from seqplan.profiler.measure.device import device_name
from seqplan.profiler.measure.out_of_memory import is_out_of_memory
from seqplan.profiler.verify.attention_check import check_attention
from seqplan.profiler.verify.memory_check import check_memory
from seqplan.profiler.verify.profile_check import check_profile
from seqplan.profiler.verify.ranks_check import check_ranks
from seqplan.profiler.verify.rates_check import check_rates
from seqplan.profiler.verify.results import CheckResult, Figure
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.profiler.verify.step_check import check_step

Check = Callable[[VerifySettings], tuple[list[Figure], list[str]]]

RANKS = "ranks"

CHECKS: dict[str, Check] = {
    "attention": check_attention,
    "rates": check_rates,
    "profile": check_profile,
    "memory": check_memory,
    "step": check_step,
    RANKS: check_ranks,
}
"""By name, in the order in which they are run."""


def verify(
    settings: VerifySettings, names: Sequence[str], report: Callable[[str], None] | None = None
) -> list[CheckResult]:
    """Run the checks of these names in their order.

    ``report``: called with each name before it is run. A check that runs out of memory is itself a
    miss, and the others go on.
    """
    torch.manual_seed(0)
    if settings.cuda:  # read by cuBLAS when it starts; deterministic algorithms require it
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    workers = torch.get_num_threads()
    if settings.quick:  # small work takes longer in several workers than in one
        torch.set_num_threads(1)
    try:
        return [_result(name, settings, report) for name in CHECKS if name in names]
    finally:
        torch.set_num_threads(workers)


def _skip_reason(name: str, settings: VerifySettings) -> str | None:
    """Describe why a check cannot be run with so many ranks; None if it can."""
    if (name == RANKS) == (settings.world_size > 1):
        return None
    if name == RANKS:
        return "there is one rank: start with torchrun on several devices"
    return "of one process: start without torchrun"


def _result(
    name: str, settings: VerifySettings, report: Callable[[str], None] | None
) -> CheckResult:
    if (reason := _skip_reason(name, settings)) is not None:
        return CheckResult(name, (), 0.0, skipped=reason)
    if report is not None:
        report(name)
    started = time.monotonic()
    try:
        figures, notes = CHECKS[name](settings)
    except RuntimeError as error:
        if settings.world_size > 1 or not is_out_of_memory(error):
            raise
        figures, notes = [Figure("out of memory", "times", 1.0, most=0.0)], []
        notes.append(f"out of memory: {' '.join(str(error).split())[:200]}")
    if settings.cuda:
        torch.cuda.empty_cache()
    return CheckResult(name, tuple(figures), time.monotonic() - started, tuple(notes))


def _nccl_version(settings: VerifySettings) -> str | None:
    if not settings.cuda or not hasattr(torch._C, "_nccl_version"):
        return None
    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _run_smi(*arguments: str) -> str | None:
    """Return the output of nvidia-smi; None without it, or if it fails."""
    try:
        completed = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip()


def verification_document(
    settings: VerifySettings, results: Sequence[CheckResult], command: str
) -> dict[str, Any]:
    """Return everything as JSON: date, device, versions, topology, command, and every figure."""
    return {
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device_name(settings.device),
        "ranks": settings.world_size,
        "compared_with": None if settings.hardware is None else settings.hardware.name,
        "versions": {
            "seqplan": VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "nccl": _nccl_version(settings),
            "driver": _run_smi("--query-gpu=driver_version", "--format=csv,noheader", "--id=0")
            if settings.cuda
            else None,
        },
        "topology": _run_smi("topo", "--matrix") if settings.cuda else None,
        "kernel": settings.choose_model_kernel().name,
        "kernels": settings.explain_kernels(),
        "command": command,
        "quick": settings.quick,
        "missed": sum(len(result.misses) for result in results),
        "checks": [result.document() for result in results],
    }
