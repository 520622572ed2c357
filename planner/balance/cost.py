"""Cost of a micro-batch on a trainer's ranks: Σ (a·l² + b·l) + c, from any source."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.devices import find_device
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.fit.latency_fit import Observed
from seqplan.costs.fit.refit import refit
from seqplan.costs.latency import Latency
from seqplan.costs.model_files.model_config import read_config
from seqplan.costs.model_files.model_file import find_model
from seqplan.costs.model_files.vision_tower import GATED_FFN, VisionTower
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.planner.argument_checks import check_list, read_stage_scheme
from seqplan.plans.scheme import Scheme


class WrittenConfig(Protocol):
    """A configuration of transformers."""

    def to_json_string(self) -> str:
        """Write what its config.json has."""
        ...


FORWARD_SHARE = 1 / 3
"""Forward's part of forward and backward, in products."""


@dataclass(frozen=True)
class Cost(Latency):
    """Forward and backward of a micro-batch on one rank of a trainer.

    ``a`` ms/token², ``b`` ms/token, ``c`` ms for the micro-batch itself, whatever is in it.

    A rank is one of the trainer's data-parallel ranks, with all GPUs of it. ``ValueError`` for a
    coefficient that is negative or no number.
    """

    @classmethod
    def from_profile(
        cls, profile: Profile | str, scheme: Scheme | str, expert_parallel: int | None = None
    ) -> Cost:
        """Take the costs of a profile for a scheme such as ``tp2.u2``.

        ``profile``: itself, its name or file; ``expert_parallel``: over how many ranks experts are
        split, by default the profile's smallest degree. ``ValueError`` for an unknown profile or
        scheme, and for stages: trainers that have them run micro-batches through all of them.
        """
        known, wanted = read_stage_scheme(profile, scheme, expert_parallel)
        latency = known.by_scheme[wanted].latency
        return cls(latency.a, latency.b, latency.c)

    @classmethod
    def from_model(
        cls,
        model: str | Path | WrittenConfig | dict[str, Any],
        device: str,
        *,
        tp: int = 1,
        ulysses: int = 1,
        ring: int = 1,
        recompute: str = "none",
        zero: int = 1,
        gpus: int = 8,
    ) -> Cost:
        """Derive costs by the analytic model, if nobody has measured.

        ``model``: a known name, the path of its config.json, of a folder that has one, or of a
        file of sizes, or a configuration of transformers (``model.config``); ``device``: of
        ``DEVICES``; ``gpus``: of the whole job. ``ValueError`` for an unknown name and an
        unsupported model.
        """
        scheme = Scheme(tp=tp, ulysses=ulysses, ring=ring)
        return cls._derive(_sizes(model), device, scheme, recompute=recompute, zero=zero, gpus=gpus)

    @classmethod
    def from_vision_tower(
        cls,
        tower: VisionTower | Path | str,
        device: str,
        *,
        recompute: str = "none",
        trained: bool = True,
        gpus: int = 8,
    ) -> Cost:
        """Derive a vision encoder's costs by the analytic model, per patch.

        ``tower``: itself, or the path of a vision-language model's config.json; ``device`` and
        ``gpus`` as in ``from_model``; ``trained``: a frozen encoder has a forward only. Attention
        is of both directions, over a frame, or over windows in the layers that have them.
        ``ValueError`` as ``VisionTower.from_config`` and ``from_model``.
        """
        if not isinstance(tower, VisionTower):
            tower = VisionTower.from_config(tower)
        sizes = ModelSizes(
            hidden=tower.hidden,
            layers=tower.layers,
            heads=tower.heads,
            kv_heads=tower.heads,
            # As many products as with the three matrices that the analytic model has.
            ffn=max(1, round(tower.ffn * tower.matrices / GATED_FFN)),
            vocab=1,
        )
        causal = cls._derive(sizes, device, Scheme(), recompute=recompute, zero=1, gpus=gpus)
        whole = tower.full_layers / tower.layers
        projection = tower.projection_products / (tower.layer_products * tower.layers)
        both_ways = 2 * causal.a
        in_windows = both_ways * (1 - whole) * (tower.window or 0)
        share = 1.0 if trained else FORWARD_SHARE
        return cls(
            share * both_ways * whole,
            share * (causal.b * (1 + projection) + in_windows),
            share * causal.c,
        )

    @classmethod
    def _derive(
        cls, sizes: ModelSizes, device: str, scheme: Scheme, *, recompute: str, zero: int, gpus: int
    ) -> Cost:
        hardware = find_device(device)
        per_node = min(gpus, hardware.gpus_per_node)
        if gpus < 1 or gpus % per_node:
            raise ValueError(f"gpus {gpus}: must be whole nodes of {hardware.gpus_per_node}")
        deployment = Deployment(
            cluster=ClusterHardware(hardware, gpus // per_node, per_node),
            sizes=sizes,
            zero=zero,
            recompute=recompute,
        )
        document = derive_profile(deployment, [scheme], name="derived")
        return cls.from_profile(Profile.from_document(document, "derived"), scheme)

    def calibrate(
        self, measured: Iterable[tuple[Sequence[Sequence[int]], float]]
    ) -> tuple[Cost, str]:
        """Correct the coefficients by the trainer's times, and describe how.

        ``measured``: for steps of one rank, the lengths (tokens) of its micro-batches and the
        milliseconds that it computed. All three coefficients are fitted if there are enough and
        that predicts a held-out half best, one common factor if that does, or none.
        """
        check_list("measured", measured, "steps")
        measured = list(measured)
        for step in measured:
            if not isinstance(step, tuple | list) or len(step) != 2:
                raise TypeError(f"measured: {step!r:.60}. Give micro-batches and milliseconds")
            micro_batches, ms = step
            if isinstance(ms, bool) or not isinstance(ms, int | float | np.number):
                raise TypeError(f"measured: {ms!r}. Give milliseconds as a number")
            lists = isinstance(micro_batches, Sequence)
            if not lists or not all(isinstance(of, Sequence | np.ndarray) for of in micro_batches):
                raise TypeError(
                    f"measured: micro-batches {micro_batches!r:.60}. Give a list of lengths of each"
                )
            for length in chain.from_iterable(micro_batches):
                if not isinstance(length, int | np.integer):
                    raise TypeError(f"measured: length {length!r}. Give whole numbers of tokens")
            if any(len(micro) == 0 for micro in micro_batches):
                raise ValueError("measured: a micro-batch without sequences. Leave it out")
        samples = [
            Observed(
                tuple(length for micro in micro_batches for length in micro),
                float(ms),
                micro_batches=len(micro_batches),
            )
            for micro_batches, ms in measured
            if micro_batches
        ]
        if bad := [sample.ms for sample in samples if not 0 < sample.ms < float("inf")]:
            raise ValueError(f"measured {bad[0]} ms: must be times above 0")
        better = refit(self, Scheme(), samples)
        latency = better.latency
        return Cost(latency.a, latency.b, latency.c), f"{better.how}: {better.reason}"


def _sizes(model: str | Path | WrittenConfig | dict[str, Any]) -> ModelSizes:
    if not isinstance(model, str | Path | dict) and not hasattr(model, "to_json_string"):
        raise TypeError(f"model: {model!r}. Give a name, a path or a configuration")
    if isinstance(model, str | Path):
        origin, sizes = str(model), find_model(str(model))
    else:
        config = model if isinstance(model, dict) else json.loads(model.to_json_string())
        origin = f"model {config.get('model_type', 'without model_type')}"
        sizes = read_config(config, origin)
    if missing := [size for size in SIZES if size not in sizes]:
        raise ValueError(f"{origin}: does not state {', '.join(missing)}. Add every size")
    return ModelSizes.from_mapping(sizes)
