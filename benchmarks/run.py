"""``./run bench [NAME …]``: run benchmarks and print Markdown tables.

A benchmark is a function of the data sets that yields tables and text. To add one, write the
function, name it here, and describe its results in docs/figures.md.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
from inspect import signature
from pathlib import Path

from benchmarks.settings import data_sets, machine

BENCHMARKS = {
    "proposal": "proposals.make_proposals",
    "step": "steps.plan_one_step",
    "exact": "steps.close_gaps",
    "fill": "steps.compare_fills",
    "published": "proposals.compare_published",
    "flexsp": "proposals.compare_flexsp",
    "dynamic_cp": "analytic_model.compare_dynamic_cp",
    "memory": "memory.compare_modes",
    "fits": "fits.cover_intervals",
    "compare": "comparisons.compare_systems",
    "table3": "comparisons.compare_published_clusters",
    "whole": "iterations.compare_iterations",
    "regret": "regret.measure_regret",
    "contexts": "comparisons.sweep_contexts",
    "drawn_settings": "iterations.compare_drawn_settings",
    "regrouping": "groups.compare_regrouping",
    "window": "groups.compose_windows",
    "degrees": "groups.compare_degrees",
    "long_rings": "groups.compare_long_rings",
    "lockstep": "groups.bound_lockstep",
    "experts": "experts.compare_degrees",
    "balance": "balancing.balance_ranks",
    "slow_rank": "cpu_ranks.slow_one_rank",
    "loads_shapes": "balancing.plan_loads_and_shapes",
    "integrations": "trainers.compare_trainers",
    "in_process": "steps.plan_in_process",
    "scaling": "steps.scale_planning",
    "imbalance": "comparisons.measure_imbalance",
    "large": "comparisons.compare_large",
    "ingest": "ingest.read_sources",
    "attention": "attention.compare_attention",
    "attention_bfloat16": "attention.compare_bfloat16",
    "sync": "sync.count_messages",
    "strategies": "cpu_ranks.compare_schemes",
    "order": "order.compare_order",
    "reduction": "cpu_ranks.compare_reduction",
    "recomputation": "transformers_ranks.compare_recomputation",
    "consumer": "cpu_ranks.time_consumer",
    "one_device": "one_device.train_on_one_device",
    "planned_device": "planned_device.train_planned_steps",
    "h200": "analytic_model.compare_stacks",
    "serve": "service_requests.time_requests",
    "queries": "service_requests.time_queries",
    "sidecar": "service_requests.run_sidecar",
    "kills": "service_faults.kill_processes",
    "operations": "service_faults.operate_service",
    "deletion": "service_jobs.delete_job",
    "acknowledgements": "service_jobs.train_many_ranks",
    "architectures": "architectures.compare_architectures",
    "data_parallel": "transformers_ranks.compare_data_parallel",
    "mutations": "mutations.catch_mutants",
    "call_path": "steps.count_files",
}
"""Name → module and function."""


def main() -> None:
    """Run the benchmarks that were named, all of them by default."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    names = ", ".join(BENCHMARKS)
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help=f"of {names}; memory:SETTING and architectures:MODEL run those whose names begin so",
    )
    parser.add_argument(
        "--wikipedia",
        metavar="FILE",
        type=Path,
        default=os.environ.get("SEQPLAN_WIKIPEDIA"),
        help="token lengths of Wikipedia articles, which the repository does not carry",
    )
    args = parser.parse_args()
    requests = [name.partition(":") for name in args.names or BENCHMARKS]
    if unknown := {name for name, _, _ in requests} - set(BENCHMARKS):
        parser.error(f"unknown benchmark {sorted(unknown)[0]!r}; there are {names}")
    print(f"measured on {machine()}\n")
    data = data_sets(Path(args.wikipedia) if args.wikipedia else None)
    for name, _, part in requests:
        module, _, function = BENCHMARKS[name].partition(".")
        run = getattr(importlib.import_module(f"benchmarks.{module}"), function)
        if part and "only" not in signature(run).parameters:
            parser.error(f"{name} has no parts")
        for output in run(data, only=part) if part else run(data):
            print(re.sub(r"(?<=\d)%", " %", f"{output}\n"), flush=True)


if __name__ == "__main__":
    main()
