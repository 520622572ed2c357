"""The analytic model's times of an H200 against those of its measured profile, by stack and length.

Scheme tp1 of llama3-8b, one sequence in a micro-batch, the loss whole as in the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from benchmarks.settings import Data
from benchmarks.tables import RESULTS, Output, Table
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.latency import Latency
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.plans.scheme import Scheme

MEASURED = RESULTS / "measured" / "llama3-8b-h200.json"
LENGTHS = (2048, 4096, 8192, 16384, 32768)
STACKS = ("eager", "compiled", "megatron")


def compare_stacks(data: Sequence[Data]) -> Output:
    """Compare derived times with measured ones; no data set is used."""
    measured = Profile.load(MEASURED)
    modes = [mode.name for mode in measured.modes]
    table = Table(
        " | ".join(["stack | mode", *(f"{length:,} tokens" for length in LENGTHS)]),
        "{} | {}" + " | {:.2f}" * len(LENGTHS),
    )
    for stack, mode in product(STACKS, modes):
        deployment = Deployment(
            cluster=ClusterHardware(DEVICES["h200-141gb"], 1, 8),
            sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
            stack=stack,
            loss="whole",
        )
        document = derive_profile(deployment, [Scheme()], name="derived", modes=modes)
        derived = Profile.from_document(document, "the derived profile")
        ratios = (_ms(derived, mode, length) / _ms(measured, mode, length) for length in LENGTHS)
        table.add(stack, mode, *ratios)
    yield table


def _ms(profile: Profile, mode: str, length: int) -> float:
    latency: Latency = profile.keep_modes([mode]).by_scheme[Scheme()].latency
    return latency.micro_batch_ms([length])
