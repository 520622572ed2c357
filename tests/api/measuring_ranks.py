"""Ranks that report step times, as a multiple of the plan's prediction."""

from collections.abc import Iterable

from service_process import Served

from seqplan import Plan, from_json


def plan_of(served: Served, job: str, step: int) -> Plan:
    """The plan of a step, awaited."""
    return from_json(served.send("GET", f"/v1/jobs/{job}/plans/{step}?wait=60").body.decode())


def measure(served: Served, job: str, steps: Iterable[int], factor: float) -> dict[int, float]:
    """Every rank with work reports ``factor`` times its micro-batches' costs; the slowest (ms)."""
    slowest = {}
    for step in steps:
        plan = plan_of(served, job, step)
        took = dict.fromkeys(range(plan.world_size), 0.0)
        for pipeline in plan.pipelines:
            for rank in pipeline.ranks:
                took[rank] += factor * sum(batch.cost_ms for batch in pipeline.micro_batches)
        for rank, measured_ms in took.items():
            if measured_ms:
                report = {"step": step, "rank": rank, "measured_ms": measured_ms}
                served.ok("POST", f"/v1/jobs/{job}/measurements", report)
            ack = {"step": step, "rank": rank, "digest": None}
            served.ok("POST", f"/v1/jobs/{job}/acks", ack)
        slowest[step] = max(took.values())
    return slowest
