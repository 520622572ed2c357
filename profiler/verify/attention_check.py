"""Attention kernels and rings of this device against fp64, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields

import torch
from torch import Tensor

from seqplan.profiler.verify.attention_cases import AttentionCase, attention_cases
from seqplan.profiler.verify.dense_attention import (
    AttentionResults,
    AttentionTensors,
    dense_attention,
)
from seqplan.profiler.verify.results import Figure
from seqplan.profiler.verify.ring_emulation import emulate_ring
from seqplan.profiler.verify.settings import VerifySettings
from seqplan.runtime.sequence_parallel.kernels import Kernel, Scores

FUSED_ERROR = {"bf16": 2e-2, "fp32": 2e-5}
"""Most that one fused call may be off: root mean square, relative."""

RING_OVER_FUSED = 2.0
"""Most that a ring's error may be over that of the fused call."""

FLOOR = {"bf16": 1e-4, "fp32": 1e-6}
"""Errors of rings that are nothing, if the fused call's is smaller still."""

LSE_ERROR = {"bf16": 1e-3, "fp32": 1e-4}
"""Most by which a log-sum-exp may be off, absolute."""

LEAST_SCALE = 0.05
"""What errors are taken relative to at least: inputs are drawn with a deviation of 1."""

TENSORS = ("out", "dq", "dk", "dv")


def check_attention(settings: VerifySettings) -> tuple[list[Figure], list[str]]:
    """Hold every case against fp64, until the time is up; figures, and notes."""
    until = time.monotonic() + settings.seconds_of("attention")
    figures: list[Figure] = []
    kernels: dict[str, None] = {}
    reasons: dict[str, None] = {}
    left_out = 0
    for case in attention_cases(settings):
        if figures and not settings.quick and time.monotonic() > until:
            left_out += 1
            continue
        tensors = case.tensors(settings.device)
        scores = Scores(1.0, case.softcap, window=case.mask.reach)
        kernel = settings.choose_kernel(tensors.q, tensors.v, scores)
        if settings.kernel is not None and kernel is not settings.kernel:
            reason = settings.kernel.find_unsupported(tensors.q, tensors.v, scores)
            reasons[str(reason)] = None
        kernels[kernel.name] = None
        figures += _figures(case, tensors, kernel)
    notes = [f"kernels: {', '.join(kernels)}"]
    if reasons and settings.kernel is not None:
        notes.append(f"not by {settings.kernel.name}: {'; '.join(reasons)}")
    if left_out:
        notes.append(f"{left_out} cases were left out: the time was up")
    return figures, notes


def _figures(case: AttentionCase, tensors: AttentionTensors, kernel: Kernel) -> Iterator[Figure]:
    scale = case.width**-0.5
    exact = dense_attention(tensors, case.lengths, case.mask, scale, case.softcap)

    def attend(ring: int) -> AttentionResults:
        scores = Scores(scale, case.softcap)
        return emulate_ring(
            tensors, case.lengths, ring, case.mask, scores, kernel, case.gather_below
        )

    fused = attend(1)
    fused_errors = {
        name: relative_error(getattr(fused, name), getattr(exact, name)) for name in TENSORS
    }
    for name, error in fused_errors.items():
        yield Figure(
            f"{case.dtype}: fused call against fp64",
            f"{case.name}: {name}",
            error,
            most=FUSED_ERROR[case.dtype],
        )
    for ring in case.rings:
        results = attend(ring)
        for name, fused_error in fused_errors.items():
            yield Figure(
                f"{case.dtype}: rings against twice the fused call",
                f"{case.name}, ring {ring}: {name}",
                relative_error(getattr(results, name), getattr(exact, name)),
                most=max(RING_OVER_FUSED * fused_error, FLOOR[case.dtype]),
            )
        yield _lse_figure(case, ring, results, exact)
    yield _lse_figure(case, 1, fused, exact)
    yield _repeat_figure(case, attend)


def relative_error(got: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference over that of the exact tensor."""
    return _rms(got.double() - exact) / max(_rms(exact), LEAST_SCALE)


def _rms(tensor: Tensor) -> float:
    return float(tensor.square().mean().sqrt())


def _lse_figure(
    case: AttentionCase, ring: int, results: AttentionResults, exact: AttentionResults
) -> Figure:
    return Figure(
        f"{case.dtype}: log-sum-exp",
        f"{case.name}, ring {ring}",
        float((results.lse.double() - exact.lse).abs().max()),
        most=LSE_ERROR[case.dtype],
    )


def _repeat_figure(case: AttentionCase, attended: Callable[[int], AttentionResults]) -> Figure:
    """Count elements that differ between two runs with deterministic algorithms on."""
    ring = case.rings[-1]
    with _deterministic():
        first, other = attended(ring), attended(ring)
    differing = sum(
        int((getattr(first, field.name) != getattr(other, field.name)).sum())
        for field in fields(AttentionResults)
    )
    return Figure(
        f"{case.dtype}: elements that differ when repeated",
        f"{case.name}, ring {ring}",
        float(differing),
        most=0.0,
    )


@contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
