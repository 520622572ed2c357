"""The linear memory model and MaxLen(P), the tokens one micro-batch may hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from seqplan.plans.scheme import Scheme


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest GPU of a scheme, linear in the tokens of a micro-batch.

    Hydraulis (arXiv 2412.07894) appendix B.1, in a form that also holds ZeRO-3:

    - ``sharded_state_bytes``: (largest context in tokens, bytes over all GPUs) of the fully sharded
      states, ascending; the first whose context suffices applies. One entry where the context does
      not matter. Divided by the number of optimizer shards.
    - ``resident_layer_bytes``: 16-bit parameters and gradients of all layers; divided by tp·pp.
    - ``resident_expert_bytes``: the same of experts, which ``resident_layer_bytes`` then does not
      have; divided by pp and by the degree of expert parallelism, or by tp·pp if that is 1.
    - ``resident_embedding_bytes``: the same for both embeddings; the first and the last stage hold
      one each, a single stage holds both. Divided by tp. ``tied``: there is one, and each of those
      stages holds it.
    - ``activation_bytes_per_token``: tp → bytes per token over all layers before any division. A
      pipeline's first stage keeps up to pp micro-batches of layers/pp layers, so pp cancels.
    - ``capacity_bytes``, ``context_bytes``, ``margin_bytes``: of one GPU.
    - ``loss_bytes``: logits that the loss holds at once, whatever the tokens; divided by tp.
    - ``host_memory_bytes``: of the host, for the activations of one GPU; 0 without offload.
    """

    capacity_bytes: float
    context_bytes: float
    margin_bytes: float
    sharded_state_bytes: tuple[tuple[int | None, float], ...]
    resident_layer_bytes: float
    resident_embedding_bytes: float
    activation_bytes_per_token: Mapping[int, float]
    tied: bool = False
    loss_bytes: float = 0.0
    host_memory_bytes: float = 0.0
    resident_expert_bytes: float = 0.0

    def count_fixed_bytes(
        self, scheme: Scheme, shards: int, context: int, expert_parallel: int = 1
    ) -> float:
        """Count bytes that do not depend on the micro-batch, with states split into ``shards``.

        ``expert_parallel``: ranks that hold all experts together; 1 for those of tp.
        Raises ``ValueError`` when the profile states no model size for ``context`` tokens.
        """
        sharded = self._count_sharded_bytes(context)
        embeddings = 1.0 if scheme.pp == 1 or self.tied else 0.5
        holders = expert_parallel if expert_parallel > 1 else scheme.tp
        return (
            self.context_bytes
            + sharded / shards
            + self.resident_layer_bytes / (scheme.tp * scheme.pp)
            + self.resident_expert_bytes / (holders * scheme.pp)
            + (self.resident_embedding_bytes * embeddings + self.loss_bytes) / scheme.tp
        )

    def _count_sharded_bytes(self, context: int) -> float:
        for limit, sharded in self.sharded_state_bytes:
            if limit is None or context <= limit:
                return sharded
        raise ValueError(
            f"a context of {context} tokens is beyond the {self.sharded_state_bytes[-1][0]} for "
            "which the profile states the model's size"
            ". Use a shorter context"
        )

    def bytes_per_token(
        self, scheme: Scheme, activation: Mapping[int, float] | None = None
    ) -> float | None:
        """Return activation bytes on a GPU per micro-batch token; None if tp was not measured.

        ``activation``: as ``activation_bytes_per_token``, of another recomputation mode.
        """
        per_token = (activation or self.activation_bytes_per_token).get(scheme.tp)
        return None if per_token is None else per_token / (scheme.tp * scheme.sp)

    def room_bytes(
        self, scheme: Scheme, shards: int, context: int, expert_parallel: int = 1
    ) -> float:
        """Count the bytes of a GPU that are left for activations; negative without any."""
        fixed = self.count_fixed_bytes(scheme, shards, context, expert_parallel)
        return self.capacity_bytes - self.margin_bytes - fixed

    def max_len(
        self,
        scheme: Scheme,
        shards: int,
        context: int,
        activation: Mapping[int, float] | None = None,
        host: float = 0.0,
        expert_parallel: int = 1,
        buffer: float = 0.0,
    ) -> int:
        """Return MaxLen(P), tokens of a micro-batch that fit; 0 when not even the states do.

        ``activation``: as ``activation_bytes_per_token``, of another recomputation mode; ``host``:
        bytes that a stage keeps in host memory of a token of each micro-batch in flight, before
        division by tp·sp; ``buffer``: bytes per token of transfers, likewise.
        """
        per_token = self.bytes_per_token(scheme, activation)
        if per_token is None:
            return 0
        per_token += buffer / (scheme.tp * scheme.sp)
        tokens = self.room_bytes(scheme, shards, context, expert_parallel) / per_token
        if host:
            tokens = min(tokens, self.host_memory_bytes * scheme.tp * scheme.sp / host)
        return max(0, math.floor(tokens))
