"""A comparison's conclusion in words: the gain, its assumptions, and its main source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from seqplan.costs.model_sizes import SIZES, ModelShape
from seqplan.costs.profile import Profile
from seqplan.planner.comparison.coverage import Coverage
from seqplan.planner.comparison.nearest import find_nearest, nearest_rival
from seqplan.planner.comparison.results import System
from seqplan.planner.proposal.backends import find_backend
from seqplan.planner.sync.times import SyncTimes
from seqplan.planner.workload import Workload
from seqplan.plans.percent import percent


def assumptions(
    profile: Profile,
    sync: SyncTimes,
    truncated: int,
    workload: Workload,
    *,
    lockstep: bool = False,
    micro_step_multiple: int = 1,
    mode_of_others: str | None = None,
) -> tuple[str, ...]:
    """List the assumptions of the simulation, a sentence each.

    ``mode_of_others``: the one recomputation mode of the other systems, if ours has several.
    """
    shares = ", ".join(
        f"{percent(mode.forward_fraction, 0)} ({mode.name})" for mode in profile.modes
    )
    if len(profile.modes) == 1:
        shares = f"{percent(profile.modes[0].forward_fraction, 0)}"
    sentences = [
        (
            f"Simulated on profile {profile.name}, not measured; fit of its coefficients: "
            f"{profile.residuals}."
        ),
        (
            f"Forward takes {shares} of a micro-batch's time; sending "
            "between pipeline stages takes none."
        ),
        (f"Sync of parameters and gradients: {sync.source}; optimizer {sync.optimizer_ms:g} ms."),
        "Our selection of strategies weighs this sync; the published methods do not.",
        "Systems that are set up by search were given the very batches of the comparison.",
        _describe_flops(profile.shape),
    ]
    if lockstep:
        sentences.append(
            "All ranks run in lockstep: in every system a micro-step lasts as long as its slowest "
            "group."
        )
    if micro_step_multiple > 1:
        sentences.append(
            "Our micro-steps, and those of static strategies with our balancing, are a multiple of "
            f"{micro_step_multiple:,}; other systems follow their rules and may have "
            "other numbers of micro-steps."
        )
    if mode_of_others is not None:
        sentences.append(
            "Our micro-batches each have the cheapest recomputation mode that holds them; other "
            f"systems recompute {mode_of_others} throughout, with which one static scheme is "
            "fastest. The static strategy that propose prints changes modes as ours do."
        )
    if truncated:
        sentences.append(f"{truncated:,} sequences were truncated to {workload.max_len:,} tokens.")
    if workload.optimizer_shards is not None:
        sentences.append(f"Optimizer states are sharded over {workload.optimizer_shards:,} ranks.")
    if workload.include_flagged:
        sentences.append("Coefficients that the profile marks as unsound are used, too.")
    return tuple(sentences)


def _describe_flops(shape: ModelShape) -> str:
    """State how MFU counts a model's FLOPs, and which of its sizes are assumed."""
    if shape.vocab is None:
        return "MFU is unknown: the profile states no vocabulary."
    counted = (
        "MFU counts 6 FLOPs a token for each weight that it is multiplied with, and causal "
        "attention by Σl² of the sequences."
    )
    unknown = ", ".join(name for name in SIZES if getattr(shape, name) is None)
    if unknown:
        counted += f" A layer of 12·hidden² weights is assumed, as the profile states no {unknown}."
    return counted


SHORT, LITTLE = 8_192, 0.05
"""Context (tokens) up to which a gain below this share over packed trainers is called little."""

PACKED = ("trl", "slime", "loongforge", "veomni", "verl")
"""Integrations that pack, as they are."""


def advice(
    profile: Profile,
    systems: Sequence[System],
    max_len: int | None = None,
    coverage: Coverage | None = None,
) -> str:
    """Compare our plans with the nearest rival, and rate the gain at short contexts.

    ``max_len``: the context (tokens); integrations that pack are considered if it is short.
    """
    sentences = _against_nearest(profile, systems, coverage)
    packed = [system for system in systems[1:] if system.key in PACKED]
    if max_len is None or max_len > SHORT or not packed:
        return sentences
    best = min(packed, key=lambda system: system.mean_ms)
    gain = best.mean_ms / systems[0].mean_ms - 1
    if gain > LITTLE:
        return sentences
    return f"{sentences} Contexts up to 8K leave little to gain: {percent(gain)} over {best.name}."


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether plans pay off over the nearest rival.

    ``pays``: None if that depends on the profile, whose error against devices is unknown, or on
    sequences that no step has.
    """

    pays: bool | None
    sentence: str


def judge_gain(
    profile: Profile, systems: Sequence[System], coverage: Coverage | None = None
) -> Verdict:
    """Compare the gain of ``systems[0]`` over the nearest rival with the profile's error.

    If the steps do not stand for the data, plans pay off only if they would without any gain on
    the sequences that the steps lack; else it is open.
    """
    rival = nearest_rival(systems)
    if rival is None:
        return Verdict(None, "No other system was compared: whether one would do is open")
    gain, error, on_what = rival.speedup - 1, profile.device_error, ""
    if coverage is not None and not coverage.is_sufficient:
        least = gain * (1 - coverage.unseen)
        on_what = f" in these steps, {percent(least)} if longer sequences gain nothing"
        if not rival.certain or error is None or least <= error:
            return Verdict(None, "The steps lack the longest sequences of the data")
    if not rival.certain:
        return Verdict(False, f"{rival.full_name} is as fast")
    if error is None:
        return Verdict(None, f"Plans pay off if the profile is right within {percent(gain)}")
    if gain <= error:
        return Verdict(False, f"{rival.full_name} will do, as far as predictions are right")
    return Verdict(True, f"Plans pay off: they are {percent(gain)} faster{on_what}")


def _against_nearest(profile: Profile, systems: Sequence[System], coverage: Coverage | None) -> str:
    """Compare whole iterations of ``systems[0]`` with those of the nearest rival."""
    rival, verdict = nearest_rival(systems), judge_gain(profile, systems, coverage)
    if rival is None:
        return f"{verdict.sentence}."
    error = profile.device_error
    stated = "unknown" if error is None else percent(error, 0)
    return (
        f"{verdict.sentence}. Speed-up over the nearest rival, {rival.name}: {rival.text}. The "
        f"prediction's error against devices is {stated}."
    )


def note_other_trainer(systems: Sequence[System], baseline: tuple[str, str, str] | None) -> str:
    """Note that the nearest rival is not of the requested trainer; empty if it is, or without one.

    ``baseline``: as in ``Comparison``.
    """
    rival = nearest_rival(systems)
    if rival is None or baseline is None:
        return ""
    trainer, _, key = baseline
    if rival.key in (key, *STATIC, *find_backend(trainer).systems):
        return ""
    return f"{trainer} does not run the nearest rival: {rival.name}."


def best_published(systems: Sequence[System]) -> System | None:
    """Find the fastest of ``systems[1:]`` that dispatches and packs as it was published."""
    published = (system for system in systems[1:] if not system.balanced)
    return min(published, key=lambda system: system.mean_ms, default=None)


def best_static(systems: Sequence[System]) -> System | None:
    """Find the fastest of ``systems[1:]`` that has one homogeneous strategy and our balancing."""
    static = (system for system in systems[1:] if system.key in STATIC)
    return min(static, key=lambda system: system.mean_ms, default=None)


def rivals(systems: Sequence[System]) -> list[tuple[str, System]]:
    """Pair each system that ``systems[0]`` is compared with and its label, the nearest first."""
    candidates = (
        ("the nearest rival", find_nearest(systems)),
        ("the best published system", best_published(systems)),
        ("the best static strategy with our balancing", best_static(systems)),
    )
    found: list[tuple[str, System]] = []
    for label, system in candidates:
        if system is not None and all(system is not other for _, other in found):
            found.append((label, system))
    return found


ABLATION = ("megatron", "megatron-balanced", "one-strategy", "ours")
"""Static with round-robin, with our balancing, different pipelines, chosen anew at every step."""


def ablation(systems: Sequence[System]) -> list[tuple[System, float]]:
    """Pair each system of the ablation with its speedup over the first.

    Empty if one of them was not run.

    In the spirit of Hydraulis (arXiv 2412.07894), Fig. 13.
    """
    by_key = {system.key: system for system in systems}
    steps = [by_key[key] for key in ABLATION if key in by_key]
    if len(steps) < len(ABLATION):
        return []
    return [(system, steps[0].mean_ms / system.mean_ms) for system in steps]


STATIC = ("static", "megatron-balanced", "deepspeed-balanced")
"""Systems of one homogeneous strategy with our balancing, of which the advice takes the best."""
