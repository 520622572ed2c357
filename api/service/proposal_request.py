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
from seqplan.planner.cluster import Cluster
from seqplan.planner.lockstep.options import AS_NAMES, check_rounds
from seqplan.planner.proposal.backends import find_backend
from seqplan.planner.proposal.make_proposal import METHODS, check_method, make_proposal
from seqplan.planner.sync.choice import choose_proposal_sync
from seqplan.planner.sync.times import parse_layout


def usable_profile(profile: Profile, request: dict[str, Any]) -> Profile:
    """The profile with the schemes that a request allows; ``ProfileError`` if there is none."""
    layout = request.get("layout")
    if (trainer := request.get("trainer")) is not None:
        profile = find_backend(trainer).usable_profile(profile, request["gpus"])
    return profile.restrict(
        measured=request.get("schemes", "all") == "measured",
        layout=None if layout is None else parse_layout(layout),
    )


def parse_request(profile: Profile, request: dict[str, Any]) -> dict[str, Any]:
    """Turn a request, named as options of ``seqplan propose``, into arguments of ``make_proposal``.

    ``ValueError`` as there. Requests of earlier versions, which had fewer options, may lack some.
    """
    times, method = request.get("sync_ms"), request.get("method", METHODS[0])
    # Before the sync was derived, it was left out unless requested, or "published".
    propagation_only = request.get("propagation_only", times is None)
    times = None if times == "published" else times
    sync = choose_proposal_sync(
        profile,
        request["gpus"],
        None if times is None else (times[0], times[-1]),
        request.get("overlap", 0.0),
        propagation_only=propagation_only,
        method=method,
        spelled=("sync_ms", "overlap", "propagation_only"),
    )
    trainer = request.get("trainer")
    lockstep = request.get("lockstep", False)
    lockstep = lockstep or (trainer is not None and find_backend(trainer).lockstep)
    micro_step_multiple = request.get("micro_step_multiple", 1)
    static_groups = request.get("static_groups", False)
    check_method(profile, method, sync, lockstep=lockstep)
    check_rounds(
        profile,
        lockstep,
        micro_step_multiple,
        static_groups=static_groups,
        spelled=AS_NAMES,
    )
    return {
        "cluster": Cluster(
            request["gpus"],
            request["max_len"],
            request["tokens"],
            request.get("include_flagged", False),
            request.get("optimizer_shards"),
        ),
        "seed": request["seed"],
        "method": method,
        "sync": sync,
        "propagation_only": sync is None,
        "static_groups": static_groups,
        "lockstep": lockstep,
        "micro_step_multiple": micro_step_multiple,
        "trainer": trainer,
    }


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
