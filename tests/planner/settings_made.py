"""Small settings for comparisons: real lengths, shipped profiles, and one profile with rings."""

import json
from functools import cache
from pathlib import Path

import numpy as np

from seqplan import Profile, Workload
from seqplan.costs.shipped.catalogue import load_shipped
from seqplan.planner.batches.sampler import Sampler
from seqplan.planner.systems.setting import Setting

CODE = np.load(Path(__file__).parents[2] / "examples" / "data" / "code.npy")[:6000]


def setting_of(profile: Profile, gpus: int, max_len: int, tokens: int, steps: int = 2) -> Setting:
    """A setting with the first steps of the code lengths."""
    sampler = Sampler(CODE, tokens, max_len, 3)
    batches = tuple(sampler.batches(steps))
    return Setting(profile, Workload(gpus, max_len, tokens), batches, int(sampler.lengths.max()))


@cache
def dense(gpus: int = 64, max_len: int = 16384) -> Setting:
    """Independent pipelines."""
    return setting_of(
        load_shipped("llama-32b-a800-80gb").restrict(measured=True), gpus, max_len, 100_000
    )


@cache
def lockstep() -> Setting:
    """Micro-steps under ZeRO-3."""
    return setting_of(load_shipped("gpt-7b-a100-40gb"), 16, 32768, 100_000)


@cache
def rings() -> Setting:
    """The 7B's memory with rings of tp2 whose times are made up."""
    document = json.loads(
        json.dumps(dict(load_shipped("llama-7b-a800-80gb").restrict(measured=True).document))
    )
    document["name"] = "made-rings"
    document["schemes"] = [
        {"tp": 2, "ring": r, "a": 2e-6 / r, "b": 0.1 / r, "c": 60} for r in (1, 2, 4)
    ]
    return setting_of(Profile.from_document(document, "made"), 16, 32768, 100_000)
