"""Samples of a device whose times and bytes are known."""

from seqplan.costs.fit.samples import MeasuredOn, Sample
from seqplan.plans.scheme import Scheme
from seqplan.profiler.measure.design import design

SIZES = {"hidden": 64, "layers": 8, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 100}
MEASURED_ON = MeasuredOn("a device", "float32", "none", tuple(SIZES.items()))


def sample(scheme: Scheme, role: str, lengths: tuple[int, ...]) -> Sample:
    """Two of eight layers: 1e-6·l² + 0.01·l + 1 ms whole, 1,000 bytes a token."""
    tokens = sum(lengths)
    work = sum(1e-6 * length**2 + 0.01 * length for length in lengths) / scheme.sp
    return Sample(
        scheme=scheme,
        role=role,  # type: ignore[arg-type]
        lengths=lengths,
        layers=2,
        layers_ms=((work + 1.0) / 4, (work + 1.0) / 4 * 1.01, (work + 1.0) / 4),
        ends_ms=(1e-9,) * 3,
        forward_ms=((work + 1.0) / 12,) * 3,
        saved_bytes=tokens * 250 // scheme.sp,
        layers_saved_bytes=tokens * 250 // scheme.sp,
    )


def samples(*schemes: Scheme) -> list[Sample]:
    return [
        sample(scheme, point.role, point.lengths)
        for scheme in schemes
        for point in design(64, 4096)
    ]
