"""Windows of steps: gains of composing them if one sequence bounds steps, and moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

import numpy as np

from benchmarks.settings import Data, markdown
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.batch import Batch
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.batches.window import WindowSampler
from seqplan.planner.bounds.sequence_costs import sequence_costs
from seqplan.planner.placement.dominance import drop_dominated
from seqplan.planner.placement.fleet import Models, PipelineClass
from seqplan.planner.strategies.constructive import Constructive, LayoutSchemes
from seqplan.planner.sync.times import parse_layout
from seqplan.planner.workload import Workload

SETTINGS = (
    ("32b", "tp8", 1024, 131_072, 3_200_000),
    ("7b", "tp2", 1024, 131_072, 3_200_000),
    ("32b", "tp8", 64, 131_072, 200_000),
    ("32b", "tp8", 64, 32_768, 200_000),
)
WINDOWS = (2, 4, 8)
STEPS = 16


def run(data: Sequence[Data]) -> None:
    """Print, for each data set and window, the gain in computing time and the tokens moved."""
    rows = [_row(source, *setting) for source in data for setting in SETTINGS]
    print(f"### Windows of steps, simulated on the A800 profiles, {STEPS} steps\n")
    head = ["lengths, model, GPUs, context", "as drawn"]
    head += [f"{window} steps: gain, tokens moved" for window in WINDOWS]
    print(markdown(head, rows) + "\n")


def _row(source: Data, model: str, layout: str, gpus: int, context: int, tokens: int) -> list[str]:
    profile = load_shipped(f"llama-{model}-a800-80gb").restrict(layout=parse_layout(layout))
    models = Workload(gpus, context, tokens).models(profile)
    classes = [PipelineClass.from_model(model, 1) for model in drop_dominated(models).values()]
    sampler = Sampler(source.lengths, tokens, context, 0)
    costs = sequence_costs(classes, sampler.lengths, gpus)
    drawn_ms = _mean_ms(sampler.batches(STEPS), models, gpus)
    row = [f"{source.name}, {model.upper()} {layout}, {gpus:,}, {context // 1024}K"]
    row.append(f"{drawn_ms:,.0f} ms")
    for window in WINDOWS:
        windows = WindowSampler(sampler, window, costs, 0)
        gain = drawn_ms / _mean_ms(windows.batches(STEPS), models, gpus) - 1
        row.append(f"{gain:+.1%}, {windows.report().moved_tokens:.1%}")
    return row


def _mean_ms(batches: Iterable[Batch], models: Models, gpus: int) -> float:
    """Plan steps on the layout, groups that stay; the mean time of forward and backward (ms)."""
    times = []
    layout = LayoutSchemes.list_from_models(models)[0]
    for batch in batches:
        placement = Constructive(layout, batch, gpus).place(np.inf)
        assert placement is not None
        times.append(placement.objective_ms)
    return mean(times)
