"""Whole iterations of compared systems over the context length, on the lengths that ship.

``seqplan compare --sweep`` for two numbers of tokens; ``docs/data/contexts.csv`` holds the results,
of which the site draws a chart.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.settings import CODE, PROFILE, Data, markdown

CONTEXTS = (8_192, 16_384, 32_768, 65_536, 131_072)
TOKENS = (200_000, 800_000)
SYSTEMS = {
    "static": "best static strategy, balanced",
    "megatron-packing": "Megatron dynamic CP, packing-aware",
    "megatron": "Megatron-like, varlen windows",
}
"""Key of a system in the comparison → its name in the table."""

FILE = Path(__file__).parents[1] / "docs" / "data" / "contexts.csv"


def run(data: Sequence[Data]) -> None:
    """Print iterations of other systems over ours, and write them to the file."""
    points = [(tokens, point) for tokens in TOKENS for point in compare_contexts(tokens)]
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["tokens", "context", "system", "iteration_ms", "over_ours"])
        for tokens, point in points:
            for key in ("ours", *SYSTEMS):
                system = systems_of(point)[key]
                row = [tokens, point["value"], key, system["mean_ms"], system["speedup"]]
                writer.writerow(row)
    head = ["tokens a step, context", "ours", *SYSTEMS.values()]
    print(f"### Over the context: {PROFILE}, 64 GPUs, code, 16 steps\n")
    print(markdown(head, [_row(tokens, point) for tokens, point in points]) + "\n")


def compare_contexts(tokens: int, contexts: Sequence[int] = CONTEXTS) -> list[dict[str, Any]]:
    """Return the point of each context, as ``seqplan compare --json`` has it."""
    command = ["compare", str(CODE), "--profile", PROFILE, "--gpus", "64", "--max-len"]
    command += [str(contexts[0]), "--tokens", str(tokens), "--json"]
    command += ["--systems", "static,megatron,megatron-dcp"]
    command += ["--sweep", f"max-len={','.join(map(str, contexts))}"]
    completed = subprocess.run(
        [sys.executable, "-m", "seqplan.api.cli", *command],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    (sweep,) = json.loads(completed.stdout)["sweeps"]
    points: list[dict[str, Any]] = sweep["points"]
    return points


def systems_of(point: dict[str, Any]) -> dict[str, Any]:
    """Return the systems of a point by their keys."""
    return {system["key"]: system for system in point["systems"]}


def _row(tokens: int, point: dict[str, Any]) -> list[str]:
    systems = systems_of(point)
    return [
        f"{tokens:,}, {point['value'] // 1024}K",
        f"{systems['ours']['mean_ms'] / 1000:.2f} s",
        *(f"{systems[key]['speedup']:.2f}" for key in SYSTEMS),
    ]
