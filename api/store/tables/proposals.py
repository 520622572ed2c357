"""The table of proposals: to be made, ready, or failed."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from seqplan.api.store import schema
from seqplan.api.store.errors import InUse
from seqplan.api.store.rows import ProposalRow, columns, get, lock_row
from seqplan.api.store.tables.answers import forget_answers
from seqplan.api.store.tables.jobs import check_unused
from seqplan.api.store.tables.revisions import check_no_revision
from seqplan.planner.proposal.document import Proposal
from seqplan.plans.service_routes import PROPOSAL_DOCUMENTS, PROPOSALS


def put_proposal(
    connection: Connection, key: str, request: dict[str, Any], document: str | None
) -> None:
    """Keep a proposal that is to be made, or that was brought along ready."""
    row = ProposalRow(
        id=key,
        request=json.dumps(request),
        state="running" if document is None else "ready",
        document=document,
        error=None,
    )
    known = get(connection, ProposalRow, key)
    if known is None:
        connection.execute(insert(schema.proposals).values(columns(row)))
    elif (known.document, known.request) != (document, row.request):
        # A sidecar names its proposal after its job: that one's job was removed.
        same = schema.proposals.c.id == key
        connection.execute(update(schema.proposals).where(same).values(columns(row)))


def running_proposals(connection: Connection) -> list[str]:
    """Return the ids of proposals that are to be made."""
    table = schema.proposals
    query = select(table.c.id).where(table.c.state == "running")
    return list(connection.execute(query).scalars())


def ready_document(proposal: ProposalRow) -> Proposal:
    """Read the document of a proposal that is ready, as those of all jobs are."""
    assert proposal.document is not None
    return Proposal.from_json(proposal.document, "proposal")


def settle_proposal(
    connection: Connection, key: str, *, document: str | None = None, error: str | None = None
) -> None:
    """Note that a proposal was made, or could not be."""
    state = "ready" if document is not None else "failed"
    connection.execute(
        update(schema.proposals)
        .where(schema.proposals.c.id == key)
        .values(state=state, document=document, error=error)
    )


def remove_proposal(connection: Connection, key: str) -> bool:
    """Remove a proposal; False if there is none. ``InUse`` while a job is planned by it."""
    if not lock_row(connection, ProposalRow, key):
        return False
    check_unused(connection, f"proposal {key}", schema.jobs.c.proposal, key)
    check_no_revision(connection, key)
    connection.execute(delete(schema.proposals).where(schema.proposals.c.id == key))
    forget_answers(connection, (PROPOSALS, PROPOSAL_DOCUMENTS), key)
    return True


def check_not_made_from(connection: Connection, lengths: str) -> None:
    """Raise ``InUse`` while a proposal is being made from these lengths."""
    table = schema.proposals
    making = select(table.c.id, table.c.request).where(table.c.state == "running")
    for proposal, request in connection.execute(making.order_by(table.c.id)):
        if json.loads(request).get("lengths") == lengths:
            raise InUse(f"lengths {lengths}: proposal {proposal} is being made from them")
