"""The cases of a rehearsal: steps of modules and staged models, and restored optimizers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from fake_device import MEMORY, fake_device
from fake_distributed import FakeDistributed, FakeGroup, fake_distributed
from matching import find_mismatches
from recording import Recording
from torch import Tensor

from seqplan import Plan, Scheme, rank_view, runtime
from seqplan.plans.plan import MicroBatch
from seqplan.plans.recomputation import MODES
from seqplan.profiler.measure.bench import make_full_plan
from seqplan.runtime.checkpoint import stored_slices
from seqplan.runtime.data.targets import Targets
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.experts import dispatch
from seqplan.runtime.experts.blocks import ExpertBlocks
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama
from seqplan.runtime.recomputation import OFFLOAD
from seqplan.runtime.sequence_parallel.peers import Peers
from seqplan.runtime.states import rails
from seqplan.runtime.states.sharded_states import ShardedStates
from seqplan.runtime.tensor_parallel.groups import TensorGroups
from seqplan.runtime.training.prepare import make_preparer
from seqplan.runtime.training.run_step import run_step

Result = dict[str, Any]

DEVICE = torch.device("cuda", 0)
SIZES = {"hidden": 512, "heads": 8, "kv_heads": 8, "ffn": 1408, "vocab": 1000}
ROUTED = {**SIZES, "experts": 8, "experts_per_token": 2, "expert_ffn": 256}
LAYERS = 4
LENGTHS = (1024, 256, 700, 68)
"""2,048 tokens, some of lengths that blocks do not divide."""


class SeededTargets(SeededTokens):
    """Seeded tokens with labels that weigh a half."""

    def targets(self, id: int, start: int, stop: int) -> Targets:
        return Targets(self.tokens(id, start, stop), np.full(stop - start, 0.5))


@contextmanager
def rehearsal(
    rank: int, world: int, memory: int = MEMORY
) -> Iterator[tuple[Recording, FakeDistributed]]:
    """Be one rank of ``world`` on fake CUDA with ``memory`` bytes."""
    recording = Recording()
    with (
        fake_distributed(recording, rank, world) as distributed,
        fake_device(recording, world, memory),
    ):
        yield recording, distributed


def list_faults(recording: Recording) -> dict[str, int]:
    """What a device or NCCL would reject, with the line that does it."""
    return {f"{kind} ({line})": n for (kind, line), n in recording.faults.items()}


def make_plan(scheme: str, world: int, lengths: Sequence[int], modes: Sequence[str]) -> Plan:
    """As many pipelines as there is room for, each with a micro-batch of each mode."""
    plan = make_full_plan(Scheme.parse(scheme), lengths, world)
    pipelines, n = [], len(lengths)
    for place, pipeline in enumerate(plan.pipelines):
        (one,) = pipeline.micro_batches
        batches = []
        for number, mode in enumerate(modes):
            first = (place * len(modes) + number) * n
            batch: MicroBatch = replace(
                one, sequences=tuple(range(first, first + n)), recompute=mode or None
            )
            batches.append(batch)
        pipelines.append(replace(pipeline, micro_batches=tuple(batches)))
    times = len(pipelines) * len(modes)
    tokens = times * sum(lengths)
    return replace(
        plan,
        ids=tuple(range(times * n)),
        lengths=tuple(lengths) * times,
        tokens=tokens,
        loss_tokens=tokens - times * n,
        pipelines=tuple(pipelines),
    )


def spread_rows(recording: Recording, experts: int) -> Callable[[Tensor, int], list[int]]:
    """Read counts as if all ranks had as many tokens, evenly spread over the experts."""

    def read(counts: Tensor, rows: int) -> list[int]:
        recording.wait("tolist")
        each = [rows * (at + 1) // experts - rows * at // experts for at in range(experts)]
        arriving = len(counts) - experts
        local = each[: experts // EXPERT_PARALLEL] * EXPERT_PARALLEL
        return each + local[:arriving]

    return read


EXPERT_PARALLEL = 2


def run(
    scheme: str,
    *,
    rank: int = 0,
    world: int = 8,
    staged: bool = False,
    modes: Sequence[str] = ("",),
    layers: int = LAYERS,
    sizes: Mapping[str, int] = SIZES,
    lengths: Sequence[int] = LENGTHS,
    steps: int = 3,
    non_blocking: bool = False,
    targets: bool = False,
    per_node: int | None = None,
    log: list[tuple[Any, ...]] | None = None,
    **options: Any,
) -> Result:
    """Steps of one rank, each of lengths that those before had not."""
    nodes = [rank // (per_node or world) for rank in range(world)]
    with (
        rehearsal(rank, world) as (recording, distributed),
        patch.object(rails, "gather_objects", lambda *_: nodes),
    ):
        config = ModelConfig(**sizes, layers=layers)
        degree = EXPERT_PARALLEL if config.experts else 1
        dispatch.read_counts = spread_rows(recording, config.experts)
        groups = runtime.Communicators.create()
        data = (SeededTargets if targets else SeededTokens)(config.vocab, 0)
        step: Callable[[Any, Any], Any]
        with DEVICE:
            model = Llama(config).to(torch.bfloat16)
        if staged:
            tp = Scheme.parse(scheme).tp
            job = StagedLlama(
                model,
                groups,
                device=DEVICE,
                tensor_degrees=[tp] if tp > 1 else [],
                expert_parallel=degree,
                **options,
            )
            del model
            states: Any = job.states
            prepare: Any = job.make_preparer(data)
            optimizer = make_optimizer(states)
            step = lambda view, work: job.run_step(  # noqa: E731
                view, work, optimizer, clip_norm=1.0, non_blocking=non_blocking
            )
        else:
            blocks = ExpertBlocks.create(degree, groups)
            if blocks is not None:
                options["experts"] = model.split_experts(blocks, groups.states, DEVICE)
            states = ShardedStates(model, groups.states, **options)
            prepare = make_preparer(
                data,
                Peers(groups.attention),
                heads=config.heads,
                kv_heads=config.kv_heads,
                device=DEVICE,
                modes=(*MODES, OFFLOAD),
                blocks=blocks,
            )
            optimizer = make_optimizer(states)
            step = lambda view, work: run_step(  # noqa: E731
                view, work, model, states, optimizer, clip_norm=1.0, non_blocking=non_blocking
            )
        result: Result = {"layers": layers, "micro_batches": len(modes)}
        for number in range(steps):
            shifted = [length - number for length in lengths]
            plan = make_plan(scheme, world, shifted, modes)
            view = rank_view(replace(plan, expert_parallel=degree), rank)
            states.forget_gradients()
            recording.restart()
            before = result["at rest"] = recording.bytes_now
            work = prepare(view)
            result["prepare"] = count(recording)
            recording.restart()
            step(view, work)
            result["step"] = count(recording)
            del work
            states.forget_gradients()
            result["leaked"] = recording.bytes_now - before
        for _ in states.export():
            pass
        result["groups"] = distributed.made
        result["faults"] = list_faults(recording)
        if log is not None:
            log += [with_members(event) for event in recording.events]
        return result


def count_of_layer(scheme: str, lengths: Sequence[int] = LENGTHS) -> Result:
    """Launches that one more layer adds to one more micro-batch, its update apart."""

    def launches(layers: int, micro_batches: int) -> int:
        modes = [""] * micro_batches
        result = run(scheme, staged=True, modes=modes, layers=layers, lengths=lengths, steps=2)
        return int(result["step"]["launches"])

    of_two, of_one = (launches(2, number) - launches(1, number) for number in (2, 1))
    return {"of_layer": of_two - of_one}


def make_optimizer(states: Any) -> torch.optim.Optimizer:
    """AdamW as users make it on CUDA."""
    return torch.optim.AdamW([master for _, master in states.master_parameters()], foreach=True)


def count(recording: Recording) -> Result:
    """The counts since the restart, as JSON values."""
    return {
        "launches": sum(recording.launches.values()),
        "by_operation": dict(recording.launches.most_common()),
        "waits": {f"{kind} ({line})": n for (kind, line), n in recording.waits.items()},
        "copies": {f"{kind} ({line})": n for (kind, line), n in recording.copies.items()},
        "peak": recording.bytes_peak,
    }


def with_members(event: tuple[Any, ...]) -> tuple[Any, ...]:
    """The event with its group by name and members, which ranks share."""
    kind, group, content, line = event
    assert isinstance(group, FakeGroup)
    return kind, (group.name, group.members), content, line


def restore(**options: Any) -> Result:
    """Save and restore with AdamW; the devices of its counts of steps before and after."""
    with rehearsal(0, 1):
        groups = runtime.Communicators.create()

        def make() -> tuple[Any, torch.optim.Optimizer]:
            with DEVICE:
                model = Llama(ModelConfig(**SIZES, layers=1)).to(torch.bfloat16)
            states = StagedLlama(model, groups, device=DEVICE).states
            masters = [master for _, master in states.master_parameters()]
            return states, torch.optim.AdamW(masters, **options)

        states, optimizer = make()
        on_device = options.get("fused") or options.get("capturable")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=DEVICE if on_device else "cpu"),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        # Fake tensors are of a subclass, which checkpoints reject.
        stored_slices.type = lambda value: Tensor if isinstance(value, Tensor) else type(value)  # type: ignore[attr-defined]
        saved = {
            key: torch.zeros(value.shape, dtype=value.dtype)
            for key, value in stored_slices.iterate_owned_entries(states, optimizer)
        }
        states, optimizer = make()
        slices = object.__new__(stored_slices.StoredSlices)
        slices.path, slices._sharding, slices._transposed = "saved", "flat", frozenset()
        slices._by_name = {}
        for key in saved:
            found = stored_slices._SLICE.fullmatch(key)
            start, stop = int(found["start"]), int(found["stop"])
            entry = stored_slices.StoredPart(key, found["kind"], start, stop, False)
            slices._by_name.setdefault(found["name"], []).append(entry)
        for part in stored_slices.iterate_owned_parts(states, optimizer):
            slices.fill(part, states, optimizer, saved)
        devices = {
            name: sorted({state[name].device.type for state in optimizer.state.values()})
            for name in ("step", "exp_avg")
        }
        return {"devices": devices}


def make_groups(world: int) -> Result:
    """Make the communicators and the tp groups of every power of two."""
    with rehearsal(0, world) as (recording, distributed):
        groups = runtime.Communicators.create()
        degrees = [2**power for power in range(1, world.bit_length())]
        tensor_groups = TensorGroups(groups.tensor, degrees)
        whole = tensor_groups.of(tuple(range(world)))
        faults = list_faults(recording)
        return {"groups": distributed.made, "degree": whole.degree, "faults": faults}


def match(scheme: str, world: int, **options: Any) -> Result:
    """Run every rank and compare their logs."""
    logs: list[list[tuple[Any, ...]]] = []
    for rank in range(world):
        logs.append([])
        run(scheme, rank=rank, world=world, layers=2, log=logs[-1], **options)
    return {"mismatches": find_mismatches(logs), "events": len(logs[0])}


GATHERED = (1536, 256, 188, 68)
"""Lengths of which a ring of 8 passes the first round and gathers the others."""

CASES: dict[str, Callable[[], Result]] = {
    "module u1": partial(run, "u1"),
    "module u8": partial(run, "u8"),
    "module r8": partial(run, "r8", lengths=(2048,)),
    "module u2.r4": partial(run, "u2.r4"),
    "module by parameter": partial(run, "u2", sharding="by_parameter"),
    "module by micro-batch": partial(run, "u2", reduce="micro-batch", modes=("", "")),
    "module modes": partial(run, "u2", modes=(*MODES, "elementwise+0.5")),
    "module targets": partial(run, "u1", world=1, targets=True),
    "module non-blocking": partial(run, "u2", targets=True, non_blocking=True),
    "staged non-blocking": partial(run, "tp2", staged=True, non_blocking=True, layers=2),
    "staged u8": partial(run, "u8", staged=True),
    "staged r8": partial(run, "r8", staged=True, lengths=GATHERED),
    "staged tp2.u4": partial(run, "tp2.u4", staged=True),
    "staged tp2.u2.r2": partial(run, "tp2.u2.r2", staged=True),
    "staged tp4.pp2": partial(run, "tp4.pp2", staged=True, modes=("", "")),
    "staged pp2.r2": partial(run, "pp2.r2", staged=True, modes=("", "")),
    "staged by parameter": partial(run, "tp2", staged=True, sharding="by_parameter"),
    "staged over nodes": partial(run, "tp2.u2", staged=True, per_node=4, modes=("", "")),
    "staged modes": partial(run, "tp2", staged=True, modes=(*MODES, "none+1")),
    "module experts": partial(run, "u4", sizes=ROUTED, modes=("none", "full")),
    "module experts alone": partial(run, "u1", world=4, sizes=ROUTED, layers=2),
    "staged experts": partial(run, "tp2.u2", staged=True, sizes=ROUTED, modes=("mlp",)),
    "restore fused": partial(restore, fused=True),
    "restore foreach": partial(restore, foreach=True),
    "launches u1": partial(count_of_layer, "u1"),
    "launches u8": partial(count_of_layer, "u8"),
    "launches r8": partial(count_of_layer, "r8", (2048,)),
    "launches r8 gathered": partial(count_of_layer, "r8", GATHERED),
    "groups": partial(make_groups, 1024),
    "match r4": partial(match, "r4", 4),
    "match tp2.u2": partial(match, "tp2.u2", 4, staged=True),
    "match over nodes": partial(match, "tp2", 8, staged=True, per_node=4),
    "match experts u4": partial(match, "u4", 4, sizes=ROUTED),
    "match experts u1": partial(match, "u1", 4, sizes=ROUTED),
    "match experts pp2.u2": partial(match, "pp2.u2", 4, staged=True, modes=("", ""), sizes=ROUTED),
    "match pp2.u2": partial(match, "pp2.u2", 4, staged=True, modes=("", "")),
}
