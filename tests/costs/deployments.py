"""Deployments of known models on known devices, and the terms of a stage of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from seqplan import Profile, Scheme
from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.gpus.devices import DEVICES
from seqplan.costs.analytic.gpus.hardware import ClusterHardware
from seqplan.costs.analytic.terms import stage_terms
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes

LLAMA_7B = ModelSizes.from_mapping(MODELS["llama-7b"])
LLAMA3_8B = ModelSizes.from_mapping(MODELS["llama3-8b"])
QWEN3_30B = ModelSizes.from_mapping(MODELS["qwen3-30b-a3b"])
LLAMA3_8B_CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
SCHEMES = [Scheme.parse(text) for text in ("tp1", "tp4", "tp2.pp2", "u8", "u4.r2", "u8.r2")]


def deploy(
    sizes: str | ModelSizes, device: str = "a800-80gb", nodes: int = 2, **options: Any
) -> Deployment:
    """Deploy a model on nodes of eight devices."""
    if isinstance(sizes, str):
        sizes = ModelSizes.from_mapping(MODELS[sizes])
    cluster = ClusterHardware(DEVICES[device], nodes, 8)
    return Deployment(cluster=cluster, sizes=sizes, **options)


def read_terms(
    deployment: Deployment, scheme: str | Scheme, lengths: Sequence[int], dp: int = 1
) -> dict[str, float]:
    """Time a micro-batch on a stage by term (ms)."""
    scheme = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    stage = stage_terms(deployment, scheme, lengths, dp)
    return {name: float(ms) for name, ms in stage.items()}


def profile_of(document: Mapping[str, Any]) -> Profile:
    """Read a derived profile from its JSON."""
    return Profile.from_json(json.dumps(document), "derived")
