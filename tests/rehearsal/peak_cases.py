"""Bytes of steps next to those of the memory model.

A step's peak has states, what layers keep, the logits, and workspaces: of backward, gathered rows
and an optimizer's temporaries. Runs with twice the layers, and with twice the vocabulary, separate
the parts that grow with either from workspaces.
"""

from collections.abc import Callable
from functools import partial

from cases import Result, run

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.memory import LOGIT_BYTES, layer_activation_bytes, state_bytes
from seqplan.costs.model_sizes import ModelSizes
from seqplan.plans.scheme import Scheme

SIZES = {"hidden": 1024, "heads": 8, "kv_heads": 8, "ffn": 2816, "vocab": 16_000}
RANKS = 8
TOKENS = (1024, 512, 300, 212)
"""Of a rank: 2,048."""


def measure_peak(name: str, mode: str, rank: int = 0) -> Result:
    """Compare a scheme's bytes under a mode, by kind: counted in a rehearsal, and expected."""
    scheme = Scheme.parse(name)
    lengths = [length * scheme.gpus // scheme.pp for length in TOKENS]
    layers = 2 * scheme.pp
    few, many, wide = (
        run(
            name,
            rank=rank,
            world=RANKS,
            staged=True,
            modes=[mode] * scheme.pp,
            layers=number,
            sizes={**SIZES, "vocab": vocab},
            lengths=lengths,
            steps=2,
        )
        for number, vocab in (
            (layers, SIZES["vocab"]),
            (2 * layers, SIZES["vocab"]),
            (layers, 2 * SIZES["vocab"]),
        )
    )
    in_step = [result["step"]["peak"] - result["at rest"] for result in (few, many, wide)]
    kept = 2.0 * (in_step[1] - in_step[0])
    logits = float(in_step[2] - in_step[0])
    counted = {"states": float(many["at rest"]), "layers": kept, "logits": logits}
    return {"counted": counted, "expected": expect_bytes(scheme, mode, 2 * layers, rank)}


def expect_bytes(scheme: Scheme, mode: str, layers: int, rank: int) -> dict[str, float]:
    """Bytes of a rank by the memory model, workspaces and context apart."""
    sizes = ModelSizes.from_mapping({**SIZES, "layers": layers})
    cluster = ClusterHardware(DEVICES["h100-80gb"], 1, RANKS)
    sharded, of_layers, of_embeddings = state_bytes(Deployment(cluster=cluster, sizes=sizes))
    held = 1.0 if scheme.pp == 1 else 0.5
    stage = rank // (scheme.gpus // scheme.pp)
    tokens = sum(TOKENS)
    in_flight = scheme.pp - stage
    last = stage == scheme.pp - 1
    return {
        "states": sharded / RANKS
        + of_layers / (scheme.tp * scheme.pp)
        + held * of_embeddings / scheme.tp,
        "layers": in_flight
        * tokens
        * layers
        / scheme.pp
        * layer_activation_bytes(sizes, mode, scheme.tp),
        "logits": float(LOGIT_BYTES * sizes.vocab * tokens if last else 0),
    }


PEAKS: dict[str, Callable[[], Result]] = {
    f"peak {name} {mode}": partial(measure_peak, name.split()[0], mode, rank)
    for name, rank in (
        ("tp1", 0),
        ("u8", 0),
        ("r8", 0),
        ("tp4.pp2", 0),
        ("tp4.pp2 last stage", RANKS - 1),
    )
    for mode in ("none", "full")
}
