"""``seqplan profile validate``: the analytic model's predictions and published results."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from seqplan.api.cli.framework.options import add_option
from seqplan.api.cli.framework.output import table
from seqplan.plans.percent import percent, wrap_text

if TYPE_CHECKING:
    from seqplan.costs.analytic.validation.held_out import LeftOut
    from seqplan.costs.analytic.validation.table_check import TableCheck

DESCRIPTION = """\
Predict published results with the model of seqplan estimate: attention and training throughput
(USP), fitted latencies and MaxLen (Hydraulis), all-to-all times (FlexSP), training on A100 and H100
(llm-foundry, NVIDIA), attention kernels. Nothing is scaled to the published figures; constants that
a table has set are named with it, and for misses the effect that the model lacks. Rows with an even
hash of their identifier may set constants; those with an odd one judge, in a table by stack. One
source at a time is left out of the fit of NVIDIA's rate of products, and judged with it.
"""

EXAMPLES = """\
examples:
  seqplan profile validate
  seqplan profile validate --rows
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "--rows", help="every figure, not only summaries")
    add_option(parser, "--json", help="as JSON, every figure")


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    from seqplan.costs.analytic.validation.expert_runs import check_odd_experts
    from seqplan.costs.analytic.validation.held_out import (
        check_odd_rows,
        leave_sources_out,
        list_scaling_pairs,
    )
    from seqplan.costs.analytic.validation.published import list_left_out
    from seqplan.costs.analytic.validation.tables import checks

    tables = checks()
    if args.json:
        print(json.dumps([as_json(check) for check in tables], ensure_ascii=False))
        return 0
    lines = summary(tables)
    lines += ["", "Rows that have set no constant (odd hash), by stack and device", ""]
    lines += summary([*check_odd_rows(tables), check_odd_experts(tables)])[:-3]
    lines += ["", "Stack megatron on H100, its rate of products fitted without a source", ""]
    lines += _left_out(leave_sources_out())
    pairs = list_scaling_pairs()
    right = sum(predicted > 0 for _, predicted in pairs)
    lines += ["", "Runs of a model on 128, 512 and 1,024 GPUs, the same tokens each"]
    lines += [f"  {right} of {len(pairs)} pairs in the published order: more GPUs are slower each"]
    notes: set[str] = set()
    for check in tables:
        lines += ["", *wrap_text(f"{check.name}: {check.what}", 98)]
        if check.assumed:
            lines += wrap_text(f"assumed: {check.assumed}", 98, initial_indent="  ")
        if args.rows:
            lines += _rows(check)
        if check.missing not in notes:
            lines += [f"  {text}" for text in check.missing.splitlines()]
        notes.add(check.missing)
    lines += ["", "Published runs that no table has", ""]
    for left in list_left_out():
        text = f"{len(left['rows'])} of {left['runs']} ({left['source']}): {left['reason']}"
        lines += wrap_text(text, 98, subsequent_indent="  ")
    print("\n".join(lines))
    return 0


def summary(tables: list[TableCheck]) -> list[str]:
    """One line a table: rank correlation, ratio, error, and how the predicted best fares."""
    lines = table(
        ("table", "figures", "rank correlation", "ratio", "error", "p90", "best chosen", "loses"),
        [
            (
                check.name,
                str(len(check.rows)),
                f"{check.rank_correlation:.3f}",
                f"{check.median_ratio:.2f}",
                percent(check.median_error),
                percent(check.p90_error),
                f"{sum(ours == best for ours, best, _ in winners)} of {len(winners)}"
                if winners
                else "–",
                percent(max(loss for _, _, loss in winners)) if winners else "–",
            )
            for check in tables
            for winners in [list(check.winners().values())]
        ],
    )
    lines.append("rank correlation: Spearman's; ratio: median of predicted / published;")
    lines.append("error, p90: what half and nine tenths of |ratio − 1| are within; loses: how much")
    lines.append("worse than the published best the predicted best is, as published")
    return lines


_FIGURES = (
    *("name", "what", "unit"),
    *("rank_correlation", "median_ratio", "median_error", "p90_error"),
)


def as_json(check: TableCheck) -> dict[str, Any]:
    """A table with every figure."""
    from seqplan.costs.analytic.validation.table_check import judges

    return {
        **{name: getattr(check, name) for name in _FIGURES},
        "winners": {
            group: {"predicted": ours, "published": best, "loss": loss}
            for group, (ours, best, loss) in check.winners().items()
        },
        "assumed": check.assumed,
        "missing": check.missing.splitlines(),
        "rows": [
            {
                "group": row.group,
                "label": row.label,
                "predicted": row.predicted,
                "published": row.published,
                "identifier": row.identifier or None,
                "stack": row.stack or None,
                "judges": judges(row.identifier) if row.identifier else None,
            }
            for row in check.rows
        ],
    }


def _left_out(sources: list[LeftOut]) -> list[str]:
    return table(
        ("source left out", "figures", "rate", "error"),
        [
            (left.source, str(left.rows), f"{left.products:.2f}", percent(left.median_error))
            for left in sources
        ],
    )


def _rows(check: TableCheck) -> list[str]:
    return table(
        (check.unit, "", "predicted", "published", "ratio"),
        [
            (
                row.group,
                row.label,
                f"{row.predicted:,.4g}",
                f"{row.published:,.4g}",
                f"{row.predicted / row.published:.2f}",
            )
            for row in check.rows
        ],
        left=2,
    )
