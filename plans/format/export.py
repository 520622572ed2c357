"""Plans in plain forms, for data loaders that cannot import this package.

JSON Lines: one line for each step and rank, with the ids of each of its micro-batches. Parquet: one
row for each sequence of each rank. Neither states in which group a rank runs: they are for trainers
whose groups are set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from seqplan.plans.format.atomic_file import atomic_write
from seqplan.plans.plan import Plan

SUFFIXES = (".jsonl", ".parquet")

COLUMNS = ("step", "rank", "micro_batch", "position", "id", "length")
"""Of the Parquet form: ``position`` in the micro-batch; all whole numbers."""


def check_export(path: Path) -> None:
    """Raise ``ValueError`` for a file that plans cannot be exported to."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: an export ends in {' or '.join(SUFFIXES)}. Name one of them")
    if path.suffix == ".parquet":
        _pyarrow(path)


@contextmanager
def export_plans(path: Path) -> Iterator[Callable[[Plan], None]]:
    """Give a function that appends a plan; the file appears when the block ends without an error.

    Its form follows the suffix. ``ValueError`` as ``check_export``.
    """
    check_export(path)
    if path.suffix == ".jsonl":
        with atomic_write(path, "w") as text:

            def append_lines(plan: Plan) -> None:
                text.writelines(json.dumps(line) + "\n" for line in rank_lines(plan))

            yield append_lines
        return
    pyarrow: Any = _pyarrow(path)
    from pyarrow import parquet

    schema = pyarrow.schema([(name, pyarrow.int64()) for name in COLUMNS])
    with atomic_write(path, "wb") as binary, parquet.ParquetWriter(binary, schema) as writer:

        def append_rows(plan: Plan) -> None:
            columns = zip(*rows(plan), strict=True)
            writer.write_table(pyarrow.table([*map(list, columns)], schema=schema))

        yield append_rows


def rank_lines(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield each rank's part: step, rank, and the ids of its micro-batches in their order.

    A rank of several pipelines runs them one after the other; an idle rank has none.
    """
    for rank, micro_batches in enumerate(_by_rank(plan)):
        ids = [[plan.ids[i] for i in micro] for micro in micro_batches]
        yield {"step": plan.step, "rank": rank, "micro_batches": ids}


def rows(plan: Plan) -> Iterator[tuple[int, ...]]:
    """Yield the same as rows of ``COLUMNS``."""
    for rank, micro_batches in enumerate(_by_rank(plan)):
        for number, micro in enumerate(micro_batches):
            for position, i in enumerate(micro):
                yield plan.step, rank, number, position, plan.ids[i], plan.lengths[i]


def _by_rank(plan: Plan) -> list[list[tuple[int, ...]]]:
    by_rank: list[list[tuple[int, ...]]] = [[] for _ in range(plan.world_size)]
    for pipeline in plan.pipelines:
        for rank in pipeline.ranks:
            by_rank[rank] += (micro.sequences for micro in pipeline.micro_batches)
    return by_rank


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise ValueError(
            f"{path}: writing .parquet needs the pyarrow package: pip install 'seqplan[arrow]'"
        ) from None
    return pyarrow
