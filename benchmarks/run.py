"""``./run bench [NAME …]``: run benchmarks and print Markdown tables."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from benchmarks.settings import data_sets, machine

NAMES = (
    "proposal",
    "step",
    "exact",
    "fill",
    "published",
    "flexsp",
    "dynamic_cp",
    "memory",
    "fits",
    "compare",
    "table3",
    "whole",
    "regret",
    "contexts",
    "drawn_settings",
    "regrouping",
    "window",
    "degrees",
    "lockstep",
    "experts",
    "balance",
    "slow_rank",
    "loads_shapes",
    "integrations",
    "in_process",
    "scaling",
    "imbalance",
    "large",
    "ingest",
    "attention",
    "sync",
    "strategies",
    "order",
    "reduction",
    "recomputation",
    "one_device",
    "h200",
    "serve",
    "queries",
    "sidecar",
    "kills",
    "operations",
    "deletion",
    "acknowledgements",
    "architectures",
    "data_parallel",
    "mutations",
    "call_path",
)


def main() -> None:
    """Run the benchmarks that were named, all of them by default."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="*",
        help=f"of {', '.join(NAMES)}; memory:SETTING runs the settings whose names begin so",
    )
    parser.add_argument(
        "--wikipedia",
        metavar="FILE",
        type=Path,
        default=os.environ.get("SEQPLAN_WIKIPEDIA"),
        help="token lengths of Wikipedia articles, which the repository does not carry",
    )
    args = parser.parse_args()
    requests = [name.partition(":") for name in args.names or NAMES]
    if foreign := {name for name, _, _ in requests} - set(NAMES):
        parser.error(f"unknown benchmark {sorted(foreign)[0]!r}; there are {', '.join(NAMES)}")
    parts = {(name, part): _find_parts(parser, name, part) for name, _, part in requests if part}
    print(f"measured on {machine()}\n")
    data = data_sets(Path(args.wikipedia) if args.wikipedia else None)
    for name, _, part in requests:
        run = importlib.import_module(f"benchmarks.{name}").run
        if part:
            run(data, parts=parts[name, part])
        else:
            run(data)


def _find_parts(parser: argparse.ArgumentParser, name: str, part: str) -> list[str]:
    """List the parts of a benchmark whose names begin with ``part``."""
    known = getattr(importlib.import_module(f"benchmarks.{name}"), "PARTS", ())
    parts = [candidate for candidate in known if candidate.startswith(part)]
    if not parts:
        parser.error(f"unknown part {part!r} of {name}; there are {', '.join(known) or 'none'}")
    return parts


if __name__ == "__main__":
    main()
