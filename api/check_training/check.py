"""What a training check compares and allows, and the plans and the model that it can run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path

from seqplan.costs.analytic.memory import count_copied_bytes, layer_activation_bytes
from seqplan.costs.architecture import DENSE, Architecture
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.format.plan_file import check_sound, read_plans
from seqplan.plans.plan import Plan
from seqplan.plans.recomputation import is_offloaded, split_mode
from seqplan.plans.schedule import stages_of_micro_steps
from seqplan.plans.scheme import Scheme
from seqplan.plans.scheme_limits import STAGED_MICRO_STEPS
from seqplan.plans.views.placement import place_on_ranks, placement_of
from seqplan.plans.views.sync_count import AllGathered, count_gathered
from seqplan.plans.views.unit_layout import UnitLayout


@dataclass(frozen=True)
class Gates:
    """Largest differences of two correct runs: of losses and gradient norms relative, of final
    parameters absolute."""

    loss: float
    gradient_norm: float
    parameter: float


GATES = {
    "float32": Gates(1e-5, 1e-4, 1e-4),
    "float64": Gates(1e-10, 1e-10, 1e-10),
    "bfloat16": Gates(1e-2, 5e-2, 1e-2),
}
"""By the ranks' dtype. The reference computes in it too, but in float32 for bfloat16."""


ELEMENT_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""Of a parameter on the ranks, by their dtype."""


@dataclass(frozen=True)
class CheckRequest:
    """Plans to train on, and how: ``dtype`` of the ranks.

    ``data``: a token file, or None for tokens seeded by sample id.
    """

    plans: Sequence[Plan]
    data: str | None
    seed: int
    dtype: str


@dataclass(frozen=True)
class CheckedMicroBatch:
    """What a micro-batch kept for backward under its recomputation mode.

    ``pipeline`` and ``place``: in the plan; ``saved_bytes``: of the rank with the most.
    """

    pipeline: int
    place: int
    recompute: str | None
    saved_bytes: int


@dataclass(frozen=True)
class CheckedStep:
    """One step of both runs.

    ``loss`` and ``gradient_norm``: of the rank that is furthest from the reference;
    ``measured_ms``: of the slowest rank, waiting for others included; ``micro_batches``: in the
    plan's order, none if the plan has no recomputation modes.
    """

    plan: Plan
    loss: float
    reference_loss: float
    gradient_norm: float
    reference_gradient_norm: float
    measured_ms: float
    micro_batches: tuple[CheckedMicroBatch, ...] = ()

    @property
    def loss_difference(self) -> float:
        """Relative to the reference."""
        return relative(self.loss, self.reference_loss)

    @property
    def gradient_norm_difference(self) -> float:
        """Relative to the reference."""
        return relative(self.gradient_norm, self.reference_gradient_norm)

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks together."""
        return 1000 * self.plan.tokens / self.measured_ms


@dataclass(frozen=True)
class Check:
    """Both runs compared; ``parameter`` is the one that differs most at the end."""

    dtype: str
    sizes: ModelSizes
    steps: tuple[CheckedStep, ...]
    parameter: str
    parameter_difference: float

    @property
    def gates(self) -> Gates:
        """What the differences may be."""
        return GATES[self.dtype]

    @property
    def agrees(self) -> bool:
        """Whether all differences are within the tolerances; NaN is not."""
        return (
            all(step.loss_difference <= self.gates.loss for step in self.steps)
            and all(
                step.gradient_norm_difference <= self.gates.gradient_norm for step in self.steps
            )
            and self.parameter_difference <= self.gates.parameter
        )


def has_modes(plan: Plan) -> bool:
    """Whether a micro-batch of the plan has a recomputation mode."""
    return any(batch.recompute for p in plan.pipelines for batch in p.micro_batches)


def size_model(plans: Sequence[Plan]) -> ModelSizes:
    """Size a small Llama with grouped heads that all of the plans' schemes can run.

    With experts if the plans split them.
    """
    schemes = {pipeline.scheme for plan in plans for pipeline in plan.pipelines}
    common = math.lcm(*(scheme.tp for scheme in schemes))
    widest = max((scheme.tp * scheme.ulysses for scheme in schemes), default=1)
    heads = common * -(-max(4, widest) // common)
    kv_heads = next(
        shared
        for shared in range(max(heads // 2, 1), 0, -1)
        if heads % shared == 0
        and all(shared % scheme.tp == 0 or scheme.tp % shared == 0 for scheme in schemes)
    )
    hidden = heads * max(8, 64 // heads // 2 * 2)
    layers = max((2, *(scheme.pp for scheme in schemes)))
    degree = plans[0].expert_parallel
    experts = Architecture(
        expert_layers=layers,
        experts=2 * degree,
        experts_per_token=2,
        expert_ffn=hidden,
        shared_ffn=2 * hidden,
    )
    return ModelSizes(
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        ffn=2 * hidden,
        vocab=256,
        architecture=DENSE if degree == 1 else experts,
    )


def count_expected_bytes(sizes: ModelSizes, dtype: str, scheme: Scheme, mode: str) -> float:
    """Count the bytes of a token that the memory model expects to be kept on the fullest stage.

    On all ranks of the stage together: of its layers and, as on the last stage, of norm and loss.
    """
    name, share = split_mode(mode)
    layers = -(-sizes.layers // scheme.pp)
    kept = layers - sum(is_offloaded(share, layer) for layer in range(layers))
    element = ELEMENT_BYTES[dtype]
    of_layer = layer_activation_bytes(sizes, name, scheme.tp)
    if name != "full":
        of_layer += count_copied_bytes(sizes, scheme)
    of_layers = kept * of_layer * element / 2
    logits = sizes.vocab * max(element, 4)  # the loss is in fp32 at least
    return of_layers + 2 * element * sizes.hidden + logits


def count_step_gathered(plan: Plan, sizes: ModelSizes) -> AllGathered:
    """Count the parameters that the fullest rank gathers in a step."""
    from seqplan.runtime.pipeline.llama_units import list_expert_units, list_units

    degree, layers, special = plan.expert_parallel, sizes.layers, sizes.architecture
    units = [
        UnitLayout(name, parameters, layers, plan.world_size)
        for name, parameters in list_units(sizes, special.experts)
    ]
    experts = [
        UnitLayout(name, parameters, layers, plan.world_size // degree)
        for name, parameters in list_expert_units(
            sizes, special.experts // degree, special.expert_ffn
        )
    ]
    return count_gathered(units, placement_of(plan.pipelines), experts, degree)


def relative(measured: float, expected: float) -> float:
    """|found − expected| / |expected|; 0 if both are 0."""
    if measured == expected:
        return 0.0
    return abs(measured - expected) / abs(expected) if expected else math.inf


def first_plans(path: Path, ranks: int, steps: int) -> list[Plan]:
    """The first ``steps`` plans of a file, all of them if it has fewer.

    ``ValueError`` for what ``ranks`` processes of the runtime cannot run.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: every rank reads the plans for itself: give a file")
    plans: list[Plan] = []
    for plan in islice(read_plans(path), steps):
        where = f"{path}: step {plan.step}"
        if ranks not in (plan.world_size, plan.gpus_left):
            raise ValueError(
                f"{path}: is planned for {plan.gpus_left} ranks, not {ranks}; give "
                f"--ranks {plan.gpus_left}, or plan for {ranks} GPUs"
            )
        check_sound(plan, where)
        if stages_of_micro_steps(plan.pipelines) > 1:
            raise ValueError(f"{where}: {STAGED_MICRO_STEPS}")
        plan = place_on_ranks(plan, ranks)
        # Labels of the check's data, which has no masks.
        plan = replace(plan, loss_tokens=plan.tokens - len(plan.lengths))
        if plans and plan.expert_parallel != plans[0].expert_parallel:
            raise ValueError(
                f"{where} has expert_parallel {plan.expert_parallel}, the steps before "
                f"{plans[0].expert_parallel}. Plan all steps with one degree"
            )
        plans.append(plan)
    if not plans:
        raise ValueError(f"{path}: no plans. Name another file, or plan again")
    for before, after in pairwise(plans):
        if after.step != before.step + 1:
            raise ValueError(
                f"{path}: step {after.step} follows step {before.step}; ranks run steps without "
                f"a gap, at most {before.step + 1 - plans[0].step} here: see --steps"
            )
    return plans
