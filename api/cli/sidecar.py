"""``seqplan sidecar``: one job's plans over HTTP, next to the job."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from seqplan.api.cli.framework.job_file import JobFile, name_file, read_job_file
from seqplan.api.cli.framework.options import add_log, add_option, check_port
from seqplan.api.cli.framework.output import ProgressBar
from seqplan.api.cli.propose import describe_truncated
from seqplan.api.cli.serve import keeping_of
from seqplan.costs.lengths import read_lengths
from seqplan.costs.shipped.catalogue import find_profile
from seqplan.planner.batches.sampler import check_tokens
from seqplan.planner.proposal.backends import apply_backend
from seqplan.planner.proposal.make_proposal import make_proposal
from seqplan.planner.workload import TOKENS_PER_GPU, Workload

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seqplan.api.store.rows import SlowFactors
    from seqplan.api.store.store import Claim, Store
    from seqplan.costs.profile import Profile
    from seqplan.planner.execution import ExecutionKind

_CLAIM_S = 0.2

DESCRIPTION = """\
Plan and serve one job that a file describes: the same engine and interface as seqplan serve.
Restarted with the same file it continues.
"""

EXAMPLES = """\
example:
  seqplan sidecar --job job.toml
job.toml:
  profile = "llama-7b-a800-80gb"
  lengths = "lengths.npy"
  gpus = 16
  max_len = 32768
  steps = 1000
optional: job, tokens, seed, look_ahead, store, files, host, port, allow_host,
  workers, execution, micro_step_multiple, trainer, keep_steps,
  abandon_hours, job_days, grace_days, token_file, refit, slowdown, robust
"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_option(parser, "--job FILE", required=True, help="job.toml")
    add_log(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command. ``ValueError`` for an unusable file or one that is not the store's job."""
    # Imported here: no other command needs the web framework or the database.
    from seqplan.api.rest.middleware.tokens import Access
    from seqplan.api.rest.server import listen, serve
    from seqplan.api.rest.state.service_log import write_log
    from seqplan.api.service.service import Service
    from seqplan.api.store.store import Store

    job = read_job_file(args.job)
    write_log(args.log)
    check_port(job.port)
    job.workers.check_installed()
    inputs = _read_inputs(job, args.job)
    files = Path(job.files) if job.files else None
    with listen(job.host, job.port) as listener, closing(Store(job.store, files)) as store:
        _enter_once(store, job, inputs, args.job)
        if truncated := int((inputs.lengths > job.max_len).sum()):
            print(describe_truncated(truncated, job.max_len), file=sys.stderr)
        if job.token_file:
            _write_token(store, Path(job.token_file), job.job)
        service = Service(store, workers=job.workers, keeping=keeping_of(job))
        access = Access([job.allow_host] if job.allow_host else [], ranks_only=True)
        return serve(service, listener, job.host, access)


class _Inputs(NamedTuple):
    """Values of a job file, checked before a store is opened or made."""

    profile: Profile
    execution: ExecutionKind
    slow: SlowFactors
    lengths: npt.NDArray[np.int64]
    workload: Workload


def _read_inputs(job: JobFile, origin: Path) -> _Inputs:
    from seqplan.api.service.job_costs import check_refit, list_slow_ranks

    profile = find_profile(job.profile)
    with name_file(origin):
        profile, execution = apply_backend(
            profile, job.gpus, job.execution or None, job.micro_step_multiple, job.trainer or None
        )
        if job.refit:
            check_refit(profile, lockstep=profile.lockstep or execution == "lockstep")
        factors = job.slowdown or None
        slow = list_slow_ranks(factors, job.gpus, refit=job.refit, robust=job.robust)
    lengths = read_lengths([job.lengths]).values
    workload = Workload(job.gpus, job.max_len, job.tokens or TOKENS_PER_GPU * job.gpus)
    with name_file(origin):
        check_tokens(int(lengths.clip(max=job.max_len).sum()), workload.tokens)
    return _Inputs(profile, execution, slow, lengths, workload)


def _write_token(store: Store, path: Path, job: str) -> None:
    """Make a token for the job's trainer, unless the file has a valid one."""
    from seqplan.api.store.tables.tokens import add_token, find_token, list_tokens

    with store.writing() as connection:
        if path.exists() and find_token(list_tokens(connection), path.read_text("utf-8").strip()):
            return
        token = add_token(connection, f"{job[:64]} {secrets.token_hex(8)}", "write")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"{token}\n")


def _enter_once(store: Store, job: JobFile, inputs: _Inputs, origin: Path) -> None:
    """Put the job in the store, unless it is there; of several sidecars one does so."""
    while True:
        with store.claim(f"entering {job.job}") as claim:
            if claim is not None:
                _enter(store, claim, job, inputs, origin)
                return
        time.sleep(_CLAIM_S)


def _enter(store: Store, claim: Claim, job: JobFile, inputs: _Inputs, origin: Path) -> None:
    from seqplan.api.service.job_costs import check_costs
    from seqplan.api.store.rows import JobRow, write_slowdown
    from seqplan.api.store.tables.jobs import add_job
    from seqplan.api.store.tables.lengths import put_lengths, write_lengths
    from seqplan.api.store.tables.proposals import put_proposal

    profile, execution, slow, lengths, workload = inputs
    row = write_lengths(store, lengths)
    request = _describe_request(job, profile, row.id, workload)
    if _is_known(store, job, request, origin):
        return
    with name_file(origin), ProgressBar() as progress:
        document = make_proposal(
            profile,
            workload,
            lengths,
            seed=job.seed,
            execution=execution,
            micro_step_multiple=job.micro_step_multiple,
            trainer=job.trainer or None,
            progress=progress,
        )
    check_costs(document, slow, job.robust)
    key = f"sidecar-{job.job}"
    with claim.writing() as connection:
        put_lengths(connection, row)
        put_proposal(connection, key, request, document.to_json())
        add_job(
            connection,
            JobRow(
                id=job.job,
                proposal=key,
                lengths=row.id,
                tokens=workload.tokens,
                seed=job.seed,
                steps=job.steps,
                look_ahead=job.look_ahead,
                world_size=job.gpus,
                last_step=job.steps - 1,
                refit=job.refit,
                slowdown=write_slowdown(slow),
                robust=job.robust,
            ),
        )


def _describe_request(
    job: JobFile, profile: Profile, lengths: str, workload: Workload
) -> dict[str, Any]:
    """Describe what the proposal is made from; defaults are left out, as in earlier stores."""
    request: dict[str, Any] = {"profile": profile.digest, "lengths": lengths, "seed": job.seed}
    request |= {"gpus": workload.gpus, "max_len": workload.max_len, "tokens": workload.tokens}
    request |= {"steps": job.steps, "look_ahead": job.look_ahead}
    for name in ("execution", "micro_step_multiple", "trainer", "refit", "slowdown", "robust"):
        if (value := getattr(job, name)) != getattr(JobFile, name):
            request[name] = list(value) if name == "slowdown" else value
    return request


def _is_known(store: Store, job: JobFile, request: dict[str, Any], origin: Path) -> bool:
    """Return whether the store has the job; ``ValueError`` if it has one of other settings."""
    from seqplan.api.store.rows import JobRow, ProposalRow, get
    from seqplan.api.store.tables.revisions import list_revisions

    with store.reading() as connection:
        known = get(connection, JobRow, job.job)
        if known is None:
            return False
        first = list_revisions(connection, known)[0].proposal
        earlier = None if first is None else get(connection, ProposalRow, first)
    before = {} if earlier is None else json.loads(earlier.request)
    if changed := _list_changes(before, request):
        raise ValueError(
            f"{origin}: the store {job.store} has a job {job.job!r} of other settings: "
            f"{', '.join(changed)}. Restore them, or name another job or store"
        )
    return True


def _list_changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """List the settings that differ, as ``steps 3, not 4``; those left out have their default."""
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    values = [
        [of.get(name, getattr(JobFile, name, None)) for of in (before, now)] for name in names
    ]
    return [
        f"{name} {_shorten(was)}, not {_shorten(value)}"
        for name, (was, value) in zip(names, values, strict=True)
    ]


def _shorten(value: object) -> str:
    """Write a setting; of a digest its first digits, of a default that is empty ``none``."""
    text = str(value) if value or isinstance(value, int | float) else "none"
    return text[: len("sha256:") + 8] if text.startswith("sha256:") else text
