"""The analytic model's times of an H200 against those of its measured profile, by stack and length.

Scheme tp1 of llama3-8b, one sequence in a micro-batch, the loss whole as in the measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.settings import Data, markdown
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.latency import Latency
from seqplan.costs.model_sizes import MODELS, ModelSizes
from seqplan.costs.profile import Profile
from seqplan.plans.scheme import Scheme

MEASURED = (
    Path(__file__).resolve().parents[1] / "docs" / "data" / "measured" / "llama3-8b-h200.json"
)
LENGTHS = (2048, 4096, 8192, 16384, 32768)
STACKS = ("eager", "compiled", "megatron")


def run(data: Sequence[Data]) -> None:
    """Print one table; no data set is used."""
    measured = Profile.load(MEASURED)
    modes = [mode.name for mode in measured.modes]
    rows = []
    for stack in STACKS:
        deployment = Deployment(
            cluster=ClusterHardware(DEVICES["h200-141gb"], 1, 8),
            sizes=ModelSizes.from_mapping(MODELS["llama3-8b"]),
            stack=stack,
            loss="whole",
        )
        document = derive_profile(deployment, [Scheme()], name="derived", modes=modes)
        derived = Profile.from_document(document, "the derived profile")
        for mode in modes:
            ratios = (
                _ms(derived, mode, length) / _ms(measured, mode, length) for length in LENGTHS
            )
            rows.append([stack, mode, *(f"{ratio:.2f}" for ratio in ratios)])
    print(markdown(["stack", "mode", *(f"{length:,} tokens" for length in LENGTHS)], rows))


def _ms(profile: Profile, mode: str, length: int) -> float:
    latency: Latency = profile.keep_modes([mode]).by_scheme[Scheme()].latency
    return latency.micro_batch_ms([length])
