"""Published training runs, a row each, and their predictions by the stack of their trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.estimate import Load, estimate
from seqplan.costs.analytic.hardware import ClusterHardware, Hardware
from seqplan.costs.analytic.validation.published import list_rows, read_published
from seqplan.costs.analytic.validation.table_check import TableCheck, ValidatedRow
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

ROCE_RANK_US = 5.0
"""What a further rank of a collective adds over RoCE: assumed, published values are 3 to 10."""

NVIDIA_ASSUMED = (
    "no recomputation; ZeRO 1 unless FSDP is stated; context parallelism as a ring; cuDNN's "
    "attention; half of tp's collectives and the sync hidden; a rail for each GPU; whole loss; "
    "fine-tuning as of sequences that are not packed"
)

_BLACKWELL = """\
B200's share of the peak and FP4_SHARE were set with the rows of an even hash. GB200's fp8 runs are
predicted 12 to 22 % fast and GB300's 6 to 12 % slow: one share of the peak for both is too simple.
All bf16 rows have an odd hash: they have set nothing."""

_HOPPER_BF16 = """\
The rates of stack megatron on H100 were set with the rows of an even hash, here and in fp8.
Recomputation and micro-batches of the largest models are not stated."""

_INTERNEVO = """\
The eager stack's rate of products on A100 was set with the rows of an even hash. On 64 to 1,024
GPUs runs without recomputation are predicted 7 to 14 % slow: RoCE carries more here than 80 % of
half a card's bandwidth."""

_TORCHTITAN = """\
Predicted 5 % fast: the gathering of FSDP2 is taken as wholly hidden."""

_TABLES = (
    # name, what, prefixes of identifiers, hardware, assumed, missing
    ("NVIDIA, h100-80gb bf16", ("dgxc",), "h100-80gb", NVIDIA_ASSUMED, _HOPPER_BF16),
    ("NVIDIA, Blackwell", ("dgxc", "megatron_bridge"), "b", NVIDIA_ASSUMED, _BLACKWELL),
    (
        "InternEvo, a100-80gb bf16",
        ("internevo",),
        "a100-80gb",
        "four 100 Gb/s RoCE cards a node; states split within a node; sync hidden; whole loss",
        _INTERNEVO,
    ),
    (
        "torchtitan, a100-80gb bf16",
        ("memory",),
        "a100-80gb",
        "200 Gb/s a GPU; selective recomputation of operations as half_products; whole loss",
        _TORCHTITAN,
    ),
)


@cache
def _figures() -> Any:
    return read_published("published_runs.json")


def list_runs() -> list[dict[str, Any]]:
    """List the runs as mappings from the columns' names, the source by its text."""
    figures = _figures()
    return [{**run, "source": figures["sources"][run["source"]]} for run in list_rows(figures)]


def predict_run(run: dict[str, Any], *, products: float | None = None) -> ValidatedRow:
    """Predict tokens/s per GPU of a run; ``products``: another rate of the stack's products."""
    deployment = _deployment_of(run)
    if products is not None:
        efficiency = deployment.cluster.hardware.matmul_efficiency * products
        hardware = replace(
            deployment.cluster.hardware, matmul_efficiency=efficiency / deployment.product_gain
        )
        deployment = replace(deployment, cluster=replace(deployment.cluster, hardware=hardware))
    load = Load(seq_len=run["tokens"], batch=run["sequences"], micro_batch=run["micro-batch"])
    scheme = Scheme(tp=run["tp"], pp=run["pp"], ring=run["ring"])
    predicted = estimate(deployment, scheme, load).tokens_per_s / run["GPUs"]
    return ValidatedRow(
        group=f"{run['model']} {run['tokens']:,}",
        label=f"{run['hardware']} {run['precision']}, {run['GPUs']} GPUs",
        predicted=predicted,
        published=run["tokens/s per GPU"],
        identifier=run["id"],
        stack=run["stack"],
        source=run["source"],
    )


def run_checks() -> list[TableCheck]:
    """Predict the tables of runs."""
    return [
        TableCheck(
            name=name,
            what=f"training throughput ({'; '.join(sorted({row.source for row in rows}))})",
            unit="tokens/s per GPU",
            larger_is_better=True,
            rows=rows,
            missing=missing,
            compete=False,
            assumed=assumed,
        )
        for name, prefixes, hardware, assumed, missing in _TABLES
        for rows in [tuple(predict_run(run) for run in _select(prefixes, hardware))]
    ]


def bridge_rows() -> tuple[ValidatedRow, ...]:
    """Predict the runs on H100 that NVIDIA has added to its fp8 table since 2025."""
    return tuple(predict_run(run) for run in _select(("megatron_bridge",), "h100-80gb"))


def _select(prefixes: tuple[str, ...], hardware: str) -> Iterator[dict[str, Any]]:
    for run in list_runs():
        kind = run["hardware"].removeprefix("g")
        if run["id"].rpartition("-")[0] in prefixes and kind.startswith(hardware):
            yield run


def _deployment_of(run: dict[str, Any]) -> Deployment:
    internevo, nvidia = run["id"].startswith("internevo"), run["stack"] == "megatron"
    hardware: Hardware = DEVICES[run["hardware"]]
    if internevo:
        hardware = replace(hardware, inter_gb_s=6.25, inter_rank_us=ROCE_RANK_US)
    if nvidia:
        hardware = replace(hardware, attention_kernel="cudnn", inter_rails=8)
    # NVL72 runs use 64 of its 72 GPUs, or fewer.
    per_node = min(run["GPUs"], 64 if hardware.gpus_per_node == 72 else 8)
    return Deployment(
        cluster=ClusterHardware(hardware, run["GPUs"] // per_node, per_node),
        sizes=_sizes_of(run["model"]),
        zero=run["zero"],
        recompute=run["recomputation"],
        precision=run["precision"],
        virtual_stages=run["virtual stages"],
        sync="hidden",
        tp_overlap=0.5 if nvidia else 0.0,
        stack=run["stack"],
        optimizer_shards=8 if internevo else 0,
    )


@cache
def _sizes_of(model: str) -> ModelSizes:
    figures = _figures()
    values = figures["models"][model]
    count = len(figures["sizes"])
    sizes = dict(zip(figures["sizes"], values[:count], strict=True))
    return ModelSizes.from_mapping({**sizes, **(values[count] if len(values) > count else {})})
