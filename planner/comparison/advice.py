"""What a comparison says in words: whether it is worth it, on which assumptions, by which part."""

from __future__ import annotations

import re
from collections.abc import Sequence

from seqplan.planner.cluster import Cluster
from seqplan.planner.comparison.results import System, mean_propagation_ms
from seqplan.planner.exchange.times import Exchange
from seqplan.profiler.profile import Profile


def assumptions(
    profile: Profile,
    exchange: Exchange,
    truncated: int,
    cluster: Cluster,
    *,
    lockstep: bool = False,
    rounds_multiple: int = 1,
) -> tuple[str, ...]:
    """List what the simulation takes for granted, a sentence each."""
    sentences = [
        f"Simulated on profile {profile.name}, not measured; its fit error: {profile.residuals}.",
        (
            f"Forward takes {profile.forward_fraction:.0%} of a micro-batch's time; sending "
            "between pipeline stages takes none."
        ),
        (
            f"Exchange of parameters and gradients: {exchange.source}; optimizer "
            f"{exchange.optimizer_ms:g} ms."
        ),
        "Our selection of strategies weighs this exchange; the published methods do not.",
        "Systems that are set up by search were given the very batches of the comparison.",
        (
            "Model FLOPs: 6 per parameter (12·layers·hidden² + 2·vocab·hidden) and token, and "
            "causal attention by Σl² of the sequences."
        ),
    ]
    if lockstep:
        sentences.append(
            "All ranks run in lockstep: in every system a round lasts as long as its slowest group."
        )
    if rounds_multiple > 1:
        sentences.append(
            "Our rounds, and those of static strategies with our balancing, are a multiple of "
            f"{rounds_multiple:,}; other systems have as many as their own rules make, also where "
            "that is no multiple."
        )
    if truncated:
        sentences.append(f"{truncated:,} sequences were truncated to {cluster.max_len:,} tokens.")
    if cluster.optimizer_shards is not None:
        sentences.append(f"Optimizer states are sharded over {cluster.optimizer_shards:,} ranks.")
    if cluster.include_flagged:
        sentences.append("Coefficients that the profile marks as unsound are used, too.")
    return tuple(sentences)


SHORT, LITTLE = 8_192, 0.05
"""Contexts (tokens) up to which a gain below this share over packed hosts is said to be little."""

PACKED = ("trl", "slime", "verl")
"""Hosts that pack, as they are."""


def advice(profile: Profile, systems: Sequence[System], max_len: int | None = None) -> str:
    """Whether heterogeneous plans are worth it, and whether a short context leaves much to gain.

    ``max_len``: the context (tokens); hosts that pack are looked at where it is short.
    """
    sentences = _against_static(profile, systems)
    packed = [system for system in systems[1:] if system.key in PACKED]
    if max_len is None or max_len > SHORT or not packed:
        return sentences
    best = min(packed, key=lambda system: system.mean_ms)
    gain = best.mean_ms / systems[0].mean_ms - 1
    if gain > LITTLE:
        return sentences
    return f"{sentences} Contexts up to 8K leave little to gain: {gain:.1%} over {best.name}."


def _against_static(profile: Profile, systems: Sequence[System]) -> str:
    """Whether heterogeneous plans are worth it: ``systems[0]`` against the best static one.

    The gain in propagation must exceed what different replicas cost more in the exchange, and the
    error of the profile's fit.
    """
    ours, best = systems[0], best_static(systems)
    if best is None:
        return "No static strategy was compared: whether one would do cannot be said."
    propagation = mean_propagation_ms(ours)
    gain = mean_propagation_ms(best) / propagation - 1
    extra_exchange_ms = (ours.mean_ms - propagation) - (best.mean_ms - mean_propagation_ms(best))
    overhead = max(0.0, extra_exchange_ms / propagation)
    error = fit_error(profile)
    stated = "the profile states no fit error"
    if error is not None:
        stated = f"the profile's fit error is {error:.1%}"
    figures = (
        f"Over the best static strategy with the same balancing ({best.name}: "
        f"{best.iterations[0].strategy}) the gain in propagation is {gain:.1%}; "
        f"exchange takes {overhead:.1%} of propagation more, and {stated}"
    )
    if gain <= overhead + (error or 0.0):
        return f"A static strategy will do. {figures}."
    if error is None:
        limit = gain - overhead
        return f"Plans pay off if the profile is right within {limit:.1%}. {figures}."
    whole = best.mean_ms / ours.mean_ms - 1
    return f"Plans pay off, by {whole:.1%} of an iteration. {figures}."


def best_published(systems: Sequence[System]) -> System | None:
    """Find the fastest of ``systems[1:]`` that dispatches and packs as it was published."""
    published = (system for system in systems[1:] if not system.balanced)
    return min(published, key=lambda system: system.mean_ms, default=None)


def best_static(systems: Sequence[System]) -> System | None:
    """Find the fastest of ``systems[1:]`` that has one homogeneous strategy and our balancing."""
    static = (system for system in systems[1:] if system.key in STATIC)
    return min(static, key=lambda system: system.mean_ms, default=None)


def rivals(systems: Sequence[System]) -> list[tuple[str, System]]:
    """Pair what ``systems[0]`` is to be judged by, in words, with the system; none that is not."""
    candidates = (
        ("the best published system", best_published(systems)),
        ("the best static strategy with our balancing", best_static(systems)),
    )
    return [(label, system) for label, system in candidates if system is not None]


def fit_error(profile: Profile) -> float | None:
    """Read the fit error that the profile states, as a share; None where it states none."""
    stated = re.search(r"([0-9]+(?:\.[0-9]+)?)\s*%", profile.residuals)
    return float(stated[1]) / 100 if stated else None


ABLATION = ("megatron", "megatron-balanced", "one-strategy", "ours")
"""Static with round-robin, with our balancing, different pipelines, chosen anew at every step."""


def ablation(systems: Sequence[System]) -> list[tuple[System, float]]:
    """Pair each system of the ablation with the first one's mean iteration over its own.

    Empty where one of them was not run.

    In the spirit of Hydraulis (arXiv 2412.07894), Fig. 13.
    """
    by_key = {system.key: system for system in systems}
    steps = [by_key[key] for key in ABLATION if key in by_key]
    if len(steps) < len(ABLATION):
        return []
    return [(system, steps[0].mean_ms / system.mean_ms) for system in steps]


STATIC = ("static", "megatron-balanced", "deepspeed-balanced")
"""Systems of one homogeneous strategy with our balancing, of which the advice takes the best."""
