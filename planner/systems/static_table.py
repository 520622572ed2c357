"""The static configurations of the published baselines (Hydraulis, arXiv 2412.07894, Table 3)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from seqplan.plans.scheme import Scheme, Strategy

SHORT, LONG = 16384, 32768
"""Contexts (tokens) of settings F1 and of F2 and F3."""

_DEGREE = re.compile(r"(DP|TP|PP)(\d+)")

MEGATRON: Mapping[tuple[str, int], tuple[str, str]] = {
    ("llama-7b", 8): ("DP2TP2PP2", "TP4PP2"),
    ("llama-7b", 16): ("DP4TP2PP2", "DP2TP4PP2"),
    ("llama-13b", 16): ("DP4TP4", "DP2TP8"),
    ("llama-13b", 32): ("DP8TP4", "DP4TP8"),
    ("llama-32b", 32): ("DP2TP8PP2", "DP2TP16"),
    ("llama-32b", 64): ("DP4TP8PP2", "DP4TP16"),
}
"""(model, GPUs) → configuration for F1, for F2 and F3."""

HOTSPA: Mapping[tuple[str, int], tuple[str, str]] = {
    ("llama-7b", 8): ("DP2TP2PP2 DP8", "TP4PP2 DP4TP2PP2 DP2TP4PP2"),
    ("llama-7b", 16): ("DP4TP2PP2 DP16", "DP2TP4PP2 DP4TP2PP2 DP16"),
    ("llama-13b", 16): ("DP4TP4 DP8TP2", "DP2TP8 DP4TP4 DP8TP2"),
    ("llama-13b", 32): ("DP8TP4 DP16TP2", "DP4TP8 DP8TP4 DP16TP2"),
    ("llama-32b", 32): ("DP2TP8PP2 DP4TP4PP2", "DP2TP16 DP2TP8PP2 DP4TP4PP2"),
    ("llama-32b", 64): ("DP4TP8PP2 DP8TP4PP2", "DP4TP16 DP4TP8PP2 DP8TP4PP2"),
}
"""The same for HotSPa: strategies from the longest interval of lengths to the shortest."""


def find_published_strategies(
    table: Mapping[tuple[str, int], tuple[str, str]], profile: str, gpus: int, max_len: int
) -> list[Strategy]:
    """Look up the strategies for a profile, GPUs and context; empty if the table has none.

    A profile belongs to a model when its name begins with the model's.
    """
    if max_len > LONG:
        return []
    for (model, size), (short, long) in table.items():
        if size == gpus and profile.startswith(f"{model}-"):
            return [parse(text) for text in (short if max_len <= SHORT else long).split()]
    return []


def parse(text: str) -> Strategy:
    """Read the strategy of ``DP4TP8PP2``; degrees of one are left out."""
    degrees = {name: int(number) for name, number in _DEGREE.findall(text)}
    scheme = Scheme(tp=degrees.get("TP", 1), pp=degrees.get("PP", 1))
    return Strategy.from_counts({scheme: degrees.get("DP", 1)})


def problem_of(strategy: Strategy, gpus: int, longest: int, reach: Mapping[Scheme, int]) -> str:
    """Describe why a cluster cannot run a strategy, "" when it can.

    ``reach``: longest sequence of each scheme.
    """
    if strategy.gpus > gpus:
        return f"{strategy} takes {strategy.gpus} GPUs"
    for scheme, _ in strategy.counts:
        if scheme not in reach:
            return f"the profile has no {scheme} that fits {gpus} GPUs"
        if reach[scheme] < longest:
            return f"{scheme} holds {reach[scheme]:,} tokens, not {longest:,}"
    return ""
