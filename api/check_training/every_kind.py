"""A plan with every kind of parallelism in one step, for eight processes of this machine."""

from __future__ import annotations

from seqplan.costs.analytic.deployment import Deployment
from seqplan.costs.analytic.derive import derive_profile
from seqplan.costs.analytic.devices import DEVICES
from seqplan.costs.analytic.hardware import ClusterHardware
from seqplan.costs.model_files.listed_models import MODELS
from seqplan.costs.model_sizes import ModelSizes
from seqplan.costs.profile import Profile
from seqplan.planner.batches.batch import Batch
from seqplan.planner.placement.assembly import assemble
from seqplan.planner.step.selection import select
from seqplan.planner.workload import Workload
from seqplan.plans.plan import Plan, Provenance
from seqplan.plans.scheme import Strategy
from seqplan.plans.version import VERSION

EVERY_KIND = Strategy.parse("1×tp2.pp2 + 1×u2.r2")
GPUS = EVERY_KIND.gpus
MODEL, DEVICE = "small", "h100-80gb"


def derive_small_profile() -> Profile:
    """Derive a small model's profile with the schemes of ``EVERY_KIND``; nothing is measured."""
    cluster = ClusterHardware(DEVICES[DEVICE], 1, GPUS)
    document = derive_profile(
        Deployment(cluster=cluster, sizes=ModelSizes.from_mapping(MODELS[MODEL])),
        [scheme for scheme, _ in EVERY_KIND.counts],
        name=f"{MODEL}-{DEVICE}-derived",
    )
    return Profile.from_document(document, "the derived profile")


def plan_every_kind(batch: Batch, profile: Profile, seed: int, max_len: int) -> Plan:
    """Dispatch and pack ``batch`` on ``EVERY_KIND``; ``Infeasible`` without room for one."""
    workload = Workload(GPUS, max_len, sum(batch.lengths))
    selected = select(batch, [EVERY_KIND], workload.models(profile), GPUS, tailor=False)
    return assemble(
        batch,
        selected,
        Provenance(VERSION, seed, profile.digest, None),
        GPUS,
        forward_fraction=profile.forward_fraction,
    )
