"""Planned steps on the GPU of this machine, next to fixed packing: predicted and measured times.

One rank, which chooses a recomputation mode for each micro-batch. Without a GPU the model is small,
and the memory of a rank is set so that its longest sequences need recomputation.
"""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.one_device import CUDA, DEVICE, DTYPE
from benchmarks.ranks import on_ranks
from benchmarks.settings import Data
from benchmarks.tables import Output, Table
from seqplan import Plan, Planner, Profile, Scheme, Workload, construct_plan, rank_view
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.fit.measured_profile import ProfiledDevices, fit_all, profile_document
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import SIZES, ModelSizes
from seqplan.costs.profile_document import combine_modes
from seqplan.costs.scheme_model import SchemeModel
from seqplan.profiler.measure.design import design
from seqplan.profiler.measure.device import capacity_bytes, context_bytes, device_name
from seqplan.profiler.measure.run import Task, measure
from seqplan.profiler.verify.rates_check import find_data_sheet
from seqplan.runtime.communicators import Communicators
from seqplan.runtime.data.tokens import SeededTokens
from seqplan.runtime.models.llama import Llama, ModelConfig
from seqplan.runtime.pipeline.staged_llama import StagedLlama

MODEL = "llama3.2-3b" if CUDA else "small"
SHORTEST, MAX_LEN, TOKENS = (256, 32768, 131_072) if CUDA else (32, 512, 2048)
MODES = ("none", "elementwise", "mlp", "full") if CUDA else ("none", "full")
ROOM = 256
"""Tokens that fit on a CPU rank without recomputation."""


@dataclass
class Trained:
    """What one way to plan gives: ms of each step, predicted and measured, and losses."""

    name: str
    predicted_ms: list[float]
    computing_ms: list[float]
    step_ms: list[float]
    losses: list[float]
    micro_batches: int
    memory: str = "–"


def train_planned_steps(data: Sequence[Data], steps: int = 6) -> Output:
    """Train on the same batches under plans of several kinds; the first step is not counted."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    (source,) = [each for each in data if each.name == "code"]
    arguments = (source.keep_within(MAX_LEN), steps)
    modes, trained = on_ranks(1, _train_all, arguments, cuda=CUDA)[0]
    yield f"{device_name(DEVICE)}, {DTYPE}, torch {torch.__version__}, {MODEL}"
    yield Table("mode | MaxLen | ms of 1/4 MaxLen and of all", "{} | {:,} | {:,.0f}", modes)
    table = Table(
        "plans | micro-batches a step | predicted | computing | over predicted: all, each step"
        " | step | over ours | memory | loss off by",
        "{} | {:.1f} | {:,.0f} ms | {:,.0f} ms | {:.3f}, {:.3f} to {:.3f} | {:,.0f} ms | {:.3f}"
        " | {} | {:.1g} %",
    )
    ours = trained[0]
    for each in trained:
        if not each.step_ms:
            yield each.name
            continue
        ratios = [a / b for a, b in zip(each.computing_ms, each.predicted_ms, strict=True)]
        table.add(
            each.name,
            each.micro_batches / (steps + 1),
            sum(each.predicted_ms) / steps,
            sum(each.computing_ms) / steps,
            sum(each.computing_ms) / sum(each.predicted_ms),
            *(min(ratios), max(ratios)),
            sum(each.step_ms) / steps,
            sum(each.step_ms) / sum(ours.step_ms),
            each.memory,
            100 * max(abs(a / b - 1) for a, b in zip(each.losses, ours.losses, strict=True)),
        )
    yield table


def _train_all(rank: int, data: Data, steps: int) -> tuple[list[Any], list[Trained]]:
    profile = _measure_modes()
    lengths = [data.draw_tokens(seed, TOKENS, 1000).tolist() for seed in range(steps + 1)]
    model = Workload(1, MAX_LEN, TOKENS).models(profile)[Scheme()]
    modes = [
        (mode.name, mode.max_len, mode.latency.micro_batch_ms([mode.max_len // 4]))
        for mode in model.modes
    ]
    lightest = next(mode.name for mode in model.modes if mode.max_len >= MAX_LEN)
    planned = {"a mode for each micro-batch": _plan(profile, lengths)}
    if CUDA:
        planned["the same, on derived costs"] = _plan(_derive(), lengths)
    planned[f"`{lightest}` everywhere"] = _plan(profile.keep_modes([lightest]), lengths)
    planned[f"`{lightest}`, packed in order"] = [
        _pack_in_order(of_step, lightest, step) for step, of_step in enumerate(lengths)
    ]
    groups = Communicators.create()
    trained = []
    for name, plans in planned.items():
        gc.collect()
        try:
            trained.append(_train(name, plans, model, lightest, groups))
        except torch.OutOfMemoryError:
            trained.append(Trained(f"{name}: out of memory", [], [], [], [], 0))
    return modes, trained


def _measure_modes() -> Profile:
    """Measure layers of the model under every mode."""
    sizes = ModelSizes.from_mapping(MODELS[MODEL])
    config = _config(sizes)
    documents = []
    for mode in MODES:
        task = Task(
            config=replace(config, recompute=mode),
            layers=2,
            device=DEVICE.type,
            dtype=str(DTYPE).removeprefix("torch."),
            schemes=(Scheme(),),
            points=tuple(design(SHORTEST, MAX_LEN, points=5)),
            repeats=9 if CUDA else 2,
        )
        with tempfile.TemporaryDirectory() as folder:
            measured_on, samples, _ = measure(task, Path(folder) / "samples.jsonl", 0, 1)
        fit = fit_all(measured_on, samples)
        devices = ProfiledDevices(
            measured_on.device, 1, capacity_bytes(DEVICE), float(context_bytes(DEVICE))
        )
        documents.append(profile_document(fit, devices, name="measured", source="this benchmark"))
    document, _ = combine_modes(documents)
    if not CUDA:
        _limit_memory(document)
    return Profile.from_document(document, "the measured profile")


def _limit_memory(document: dict[str, Any]) -> None:
    """Leave room for so many tokens without recomputation."""
    unlimited = Profile.from_document(document, "the measured profile")
    model = unlimited.keep_modes(["none"]).by_scheme[Scheme()]
    memory, (none,) = unlimited.memory, unlimited.keep_modes(["none"]).modes
    document["memory"]["capacity_bytes"] = (
        memory.count_fixed_bytes(model.scheme, 1, MAX_LEN)
        + document["memory"]["margin_bytes"]
        + ROOM * none.activation[1]
    )


def _derive() -> Profile:
    """Derive costs of this device from its data sheet, for the runtime's kernels."""
    hardware = find_data_sheet(device_name(DEVICE), capacity_bytes(DEVICE))
    assert hardware is not None, f"no data sheet of {device_name(DEVICE)}"
    deployment = Deployment(
        cluster=ClusterHardware(hardware, 1, 1),
        sizes=ModelSizes.from_mapping(MODELS[MODEL]),
        stack="eager",
        loss="whole",
    )
    document = derive_profile(deployment, [Scheme()], name="derived", modes=MODES)
    return Profile.from_document(document, "the derived profile")


def _plan(profile: Profile, lengths: Sequence[Sequence[int]]) -> list[Plan]:
    planner = Planner.from_profile(profile, 1, MAX_LEN, sync=None)
    return [planner.plan(of_step, step=step) for step, of_step in enumerate(lengths)]


def _pack_in_order(lengths: Sequence[int], mode: str, step: int) -> Plan:
    """Begin a micro-batch when the next sequence exceeds the context, as fixed packing does."""
    batches: list[list[int]] = []
    room = 0
    for place, length in enumerate(lengths):
        if length > room:
            batches.append([])
            room = MAX_LEN
        batches[-1].append(place)
        room -= length
    return construct_plan(lengths, {"u1": [batches]}, step=step)


def _train(
    name: str,
    plans: Sequence[Plan],
    model: SchemeModel,
    default_mode: str,
    groups: Communicators,
) -> Trained:
    """Train on the plans, each mode stated; predictions are those of the measured costs."""
    job, optimizer = _make_job(groups)
    prepare = job.make_preparer(SeededTokens(MODELS[MODEL]["vocab"], 0))
    latency = {mode.name: mode.latency for mode in model.modes}
    trained = Trained(name, [], [], [], [], 0)
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    for plan in plans:
        (pipeline,) = plan.pipelines
        predicted_ms, batches = 0.0, []
        for batch in pipeline.micro_batches:
            mode = batch.recompute or default_mode
            lengths = [plan.lengths[place] for place in batch.sequences]
            predicted_ms += latency[mode].micro_batch_ms(lengths)
            batches.append(replace(batch, recompute=mode))
        moded = replace(plan, pipelines=(replace(pipeline, micro_batches=tuple(batches)),))
        view = rank_view(moded, 0)
        done = job.run_step(view, prepare(view), optimizer, clip_norm=1.0)
        trained.micro_batches += len(batches)
        trained.losses.append(done.loss)
        trained.step_ms.append(1e3 * done.step_s)
        trained.computing_ms.append(1e3 * done.compute_s)
        trained.predicted_ms.append(predicted_ms)
    for of_step in (trained.step_ms, trained.computing_ms, trained.predicted_ms):
        del of_step[0]
    if CUDA:
        trained.memory = f"{torch.cuda.max_memory_reserved() / 2**30:.0f} GiB"
    return trained


def _config(sizes: ModelSizes) -> ModelConfig:
    of_model = {name: getattr(sizes, name) for name in SIZES}
    return ModelConfig(**of_model, head_dim=sizes.head_width, tied=sizes.tied)


def _make_job(groups: Communicators) -> tuple[StagedLlama, torch.optim.Optimizer]:
    torch.manual_seed(0)
    with DEVICE:
        model = Llama(_config(ModelSizes.from_mapping(MODELS[MODEL]))).to(DTYPE)
    job = StagedLlama(model, groups, device=DEVICE)
    masters = [master for _, master in job.states.master_parameters()]
    return job, torch.optim.AdamW(masters, lr=1e-5, fused=CUDA)
