"""Proposal requests and their execution, without the store and the web.

A process that makes one imports the planner and little else.
"""

from __future__ import annotations

import signal
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from seqplan.costs.lengths import parse_histogram, representative
from seqplan.costs.profile import Profile
from seqplan.planner.proposal.backends import apply_backend, find_backend
from seqplan.planner.proposal.make_proposal import METHODS, check_method, make_proposal
from seqplan.planner.proposal.proposal_sync import choose_proposal_sync
from seqplan.planner.proposal.scheme_filter import SchemeFilter
from seqplan.planner.workload import Workload


def usable_profile(profile: Profile, request: dict[str, Any]) -> Profile:
    """The profile with the schemes that a request allows; ``ProfileError`` if there is none."""
    schemes = _read_schemes(request)
    if (trainer := request.get("trainer")) is not None:
        profile = find_backend(trainer).usable_profile(profile, request["gpus"])
    return schemes.apply(profile)


def parse_request(profile: Profile, request: dict[str, Any]) -> dict[str, Any]:
    """Turn a request, named as options of ``seqplan propose``, into arguments of ``make_proposal``.

    ``ValueError`` as there; optional fields may be missing.
    """
    stated, method = request.get("sync", "derived"), request.get("method", METHODS[0])
    trainer = request.get("trainer")
    times = (stated[0], stated[-1]) if isinstance(stated, list) else stated
    sync = choose_proposal_sync(
        profile,
        request["gpus"],
        None if times == "none" else times,
        request.get("overlap", 0.0),
        method=method,
        trainer=trainer,
    )
    multiple = request.get("micro_step_multiple", 1)
    _, execution = apply_backend(
        profile, request["gpus"], request.get("execution"), multiple, trainer
    )
    check_method(profile, method, sync, lockstep=execution == "lockstep")
    return {
        "workload": Workload(
            request["gpus"],
            request["max_len"],
            request["tokens"],
            _read_schemes(request).flagged,
            request.get("optimizer_shards"),
        ),
        "seed": request["seed"],
        "method": method,
        "sync": sync,
        "execution": execution,
        "micro_step_multiple": multiple,
        "trainer": trainer,
    }


def _read_schemes(request: dict[str, Any]) -> SchemeFilter:
    try:
        return SchemeFilter.parse(request.get("schemes", ()))
    except ValueError as error:
        raise ValueError(f"schemes {error}") from None


def propose(
    pipe: Connection,
    profile_json: str,
    request: dict[str, Any],
    path: str,
    histogram: str | None,
) -> None:
    """Make a proposal in a separate process; the result goes through ``pipe``.

    ``("progress", (stage, done, total))``, then ``("document", text)`` or ``("error", line)``.
    ``path``: of the array of lengths, if there is no ``histogram`` of them.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service ends it
    try:
        profile = usable_profile(Profile.from_json(profile_json, "profile"), request)
        if histogram is None:
            lengths = np.load(path)
        else:
            lengths = representative(parse_histogram(histogram.encode(), "histogram"))
        document = make_proposal(
            profile,
            lengths=lengths,
            progress=lambda *values: pipe.send(("progress", values)),
            **parse_request(profile, request),
        )
        pipe.send(("document", document.to_json()))
    except (BrokenPipeError, ConnectionError):
        return  # the service is gone
    except Exception as error:
        pipe.send(("error", str(error) or type(error).__name__))
