"""Measured samples: the setting, and the readings of each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Literal, get_args

from seqplan.plans.scheme import Scheme

SEQUENCE_PARALLEL, PLAIN_TENSOR_PARALLEL = "sequence-parallel", "plain"
"""With tp, norms and residuals are split over its ranks, as the runtime has them; or are on every
rank, as they were in samples that do not state it."""

UNRECORDED_KERNEL = "cpu"
"""Attention kernel of samples that do not state it: they were measured on CPUs."""

LAUNCH_BOUND = 0.9
"""Share of the device's time from which the host's is what a micro-batch takes."""

Role = Literal["fit", "held-out", "packed"]
"""Use of a sample: to fit the curve, or to evaluate it, by one sequence or by several."""

ROLES: tuple[Role, ...] = get_args(Role)

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number, by the dtype in which models were measured."""


class SampleError(ValueError):
    """Samples that cannot be read or do not belong together."""


@dataclass(frozen=True, slots=True)
class MeasuredOn:
    """On what samples were measured: it must agree between all that go into one profile."""

    device: str
    dtype: str
    recompute: str
    model: tuple[tuple[str, int], ...]
    """Sizes by name: hidden, layers, heads, kv_heads, ffn, vocab; see ``ModelSizes.as_dict``."""
    tensor_parallel: str = PLAIN_TENSOR_PARALLEL
    """How tp ranks hold activations that tp does not cut."""
    kernel: str = UNRECORDED_KERNEL
    """Attention kernel that ran."""
    expert_parallel: int = 1
    """Ranks that held all experts together."""

    def sizes(self) -> dict[str, int]:
        """Return ``model`` as a dictionary."""
        return dict(self.model)


@dataclass(frozen=True, slots=True)
class Sample:
    """One micro-batch measured under one scheme.

    ``layers_ms`` and ``ends_ms``: forward and backward of all ``layers`` decoder layers that were
    run, and of embedding, norm, head and loss, every repetition; ``forward_ms``: of the layers,
    forward only. Of a pipeline all that is of its slowest stage, which runs the layers too, and
    ``ends_ms`` has what stages send to each other. ``saved_bytes``: kept for backward on the
    fullest rank, ``layers_saved_bytes`` of that by the layers. ``oom``: it did not fit, and times
    are empty.

    ``layers_peak_bytes`` and ``ends_peak_bytes``: the device allocator's peak while either ran,
    above parameters and gradients; None if the device has none that is read.
    ``allocated_bytes``, ``reserved_bytes``: with parameters and gradients, all that it had in use
    then and all that it had taken from the device.

    ``turn``: which round of a run over all micro-batches it is of; see ``pool_samples``.

    ``layers_yardstick_ms``, ``ends_yardstick_ms`` and ``experts_yardstick_ms``: how long a small
    fixed piece of work took around each repetition, on the slowest rank; see
    ``rescale_to_usual_speed``. Empty if it was not read.

    ``layers_cpu_ms``: processor time that a rank's threads had in each repetition of the layers;
    empty if the work is not the processor's, or was not read.

    ``layers_host_ms``: how long the host took to start each repetition of the layers on a device;
    empty if the host computes them.

    ``experts_ms``: forward and backward of the layers' experts and their exchanges alone; empty
    without expert parallelism.

    ``host_bytes``: kept by the layers in host memory, on the rank with most.
    """

    scheme: Scheme
    role: Role
    lengths: tuple[int, ...]
    layers: int
    layers_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]
    forward_ms: tuple[float, ...]
    saved_bytes: int
    layers_saved_bytes: int
    oom: bool = False
    layers_peak_bytes: int | None = None
    ends_peak_bytes: int | None = None
    turn: int = 0
    layers_yardstick_ms: tuple[float, ...] = ()
    ends_yardstick_ms: tuple[float, ...] = ()
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    layers_cpu_ms: tuple[float, ...] = ()
    layers_host_ms: tuple[float, ...] = ()
    experts_ms: tuple[float, ...] = ()
    host_bytes: int = 0
    experts_yardstick_ms: tuple[float, ...] = ()

    @classmethod
    def out_of_memory(
        cls, scheme: Scheme, role: Role, lengths: tuple[int, ...], layers: int, turn: int
    ) -> Sample:
        """Return the sample of a micro-batch that did not fit."""
        none: tuple[float, ...] = ()
        return cls(scheme, role, lengths, layers, none, none, none, 0, 0, oom=True, turn=turn)

    @property
    def tokens(self) -> int:
        """Tokens of the whole micro-batch."""
        return sum(self.lengths)

    def whole_ms(self, layers: int) -> float:
        """Return the time of the last and slowest stage of a model of ``layers`` layers.

        Median of the repetitions. The ends and the transfers between stages once, the layers
        to scale: layers/pp of them.
        """
        share = layers / (self.layers * self.scheme.pp)
        return median(self.layers_ms) * share + median(self.ends_ms)

    def whole_bytes(self, layers: int) -> float:
        """Count a micro-batch's bytes on the fullest rank of a model of ``layers`` layers.

        Activations of all layers, also under pp: 1F1B's first stage keeps pp micro-batches of
        layers/pp layers. The end of the model is added, as if it were on that stage. By the
        allocator if it was read: above the kept activations, a rank takes the memory of one
        layer's forward and backward, or of the end of the model, whichever is more.
        """
        layers_bytes = self.layers_saved_bytes * layers / self.layers
        if self.layers_peak_bytes is None or self.ends_peak_bytes is None:
            return layers_bytes + self.saved_bytes - self.layers_saved_bytes
        return layers_bytes + max(
            self.layers_peak_bytes - self.layers_saved_bytes, self.ends_peak_bytes
        )

    @property
    def launch_bound(self) -> bool:
        """Whether the host started the layers no faster than the device ran them."""
        if not self.layers_host_ms:
            return False
        return median(self.layers_host_ms) >= LAUNCH_BOUND * median(self.layers_ms)

    @property
    def spread(self) -> float:
        """Interquartile range of the repetitions over their median."""
        ordered = sorted(self.layers_ms)
        quarter = len(ordered) // 4
        return (ordered[-1 - quarter] - ordered[quarter]) / median(ordered)


def require_same(measured_on: MeasuredOn, wanted: MeasuredOn, origin: str) -> None:
    """Raise ``SampleError`` where samples of ``origin`` were measured on something else."""
    for name in (field.name for field in fields(MeasuredOn)):
        has, expected = getattr(measured_on, name), getattr(wanted, name)
        if has != expected:
            raise SampleError(
                f"{origin}: measured with {name} {_shown(has)}, not {_shown(expected)}; samples of "
                "different settings do not make one profile"
            )


def _shown(value: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in value) if isinstance(value, tuple) else str(value)
