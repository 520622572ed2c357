"""Faults of the runtime that its tests must catch: a line of code, changed, and the tests of it."""

from __future__ import annotations

from typing import NamedTuple

_SUMS = "tests/runtime/test_sums_and_orders.py"
_RING = "tests/runtime/sequence_parallel/test_attention.py"
_MASKED = "tests/runtime/sequence_parallel/test_masked_attention.py"
_WEIGHTED = "tests/runtime/training/test_weighted_labels.py"
_CHECKPOINT = "tests/runtime/checkpoint/test_checkpoint.py"
_DAMAGE = "tests/runtime/checkpoint/test_checkpoint_damage.py"
_CONSUMER = "tests/runtime/sources/test_consumer.py"
_HTTP = "tests/runtime/sources/test_http_source.py"
_REDUCTION = "tests/runtime/states/test_gradient_reduction.py"
_OUTAGE = "tests/runtime/sources/test_outages.py"
_TOKENS = "tests/runtime/data/test_token_data.py"
_AGREE = "tests/runtime/sources/test_agreement.py"
_MODES = "tests/runtime/test_recomputation.py"
_SAVED_BYTES = "tests/profiler/measure/test_saved_memory.py"
_MODED = "tests/runtime/pipeline/test_moded_steps.py"
_ATTACHED = "tests/runtime/huggingface/test_attached_modes.py"


class Mutant(NamedTuple):
    """One fault: ``old`` occurs once in ``file``; ``tests``: files of which one must fail."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]


_U = "runtime/sequence_parallel/ulysses.py"
_R = "runtime/sequence_parallel/ring.py"
_ATTENTION = "runtime/sequence_parallel/unified.py"
_MASKS = "runtime/sequence_parallel/masks.py"
_PASSES = "runtime/pipeline/one_f_one_b.py"
_STAGE = "runtime/pipeline/stage.py"
_STATES = "runtime/states/unit_states.py"
_UNIT = "runtime/states/unit.py"
_SYNC = "runtime/states/sync.py"
_LOSS = "runtime/losses/token_losses.py"
_STEP = "runtime/training/run_step.py"
_TARGETS = "runtime/data/targets.py"
_SAVED = "runtime/checkpoint/save_restore.py"
_AHEAD = "runtime/sources/consumer.py"
_PARTS = "runtime/recomputation.py"
_SWITCH = "runtime/huggingface/recomputation.py"
_ACKS = "runtime/sources/acknowledgements.py"
_ROUTES = "plans/service_routes.py"

MUTANTS = (
    Mutant(
        _U,
        "if not rest and index == [head // queries_per_key for head in range(stop - first)]:",
        "if not rest:",
        (_SUMS,),
    ),
    Mutant(_U, "total[:, at].add_(part)", "total[:, at].copy_(part)", (_RING,)),
    Mutant(_U, "part[:, max(again, 0) :]", "part[:, :stop - covered]", (_RING,)),
    Mutant(_R, "attend(k, v, home, layout.local, ring.causal)", "pass", (_SUMS,)),
    Mutant(_R, "transfers.passing.add_home(home.flat(k))", "pass", (_RING,)),
    Mutant(
        "runtime/sequence_parallel/ring_transfers.py",
        "self._home.view(shape).sum(0)",
        "self._home.view(shape)[0]",
        (_RING,),
    ),
    Mutant(_R, "    lse = torch.logaddexp(lse, sinks.to(exact))", "    pass", (_MASKED,)),
    Mutant(_R, "return -(weights * (dout", "return (weights * (dout", (_MASKED,)),
    Mutant(_ATTENTION, "q.shape[2] ** -0.5 if scale", "q.shape[2] ** -0.4 if scale", (_SUMS,)),
    Mutant(
        _ATTENTION,
        "return total.index_add_(1, index, gradient)",
        "return total.index_copy_(1, index, gradient)",
        (_SUMS,),
    ),
    Mutant(_MASKS, "position - self.window + 1", "position - self.window", (_MASKED,)),
    Mutant(_MASKS, "length > self.reach", "length > self.reach + 1", (_MASKED,)),
    Mutant(_PASSES, "self._kept.pop(index)", "self._kept.pop(max(self._kept))", (_SUMS,)),
    Mutant(_PASSES, " and self._view.at.tp == 0:", ":", (_SUMS,)),
    Mutant(_PASSES, "out = out * self._scale", "out = out * 1.0", (_SUMS,)),
    Mutant(
        _STAGE,
        "shard.tp_rank * config.vocab // shard.tp",
        "shard.tp_rank * (config.vocab // shard.tp)",
        (_SUMS,),
    ),
    Mutant(_UNIT, "total += parameter.grad", "total.copy_(parameter.grad)", (_SUMS,)),
    Mutant(_UNIT, "self.exact = accumulation_dtype(dtype)", "self.exact = dtype", (_SUMS,)),
    Mutant(_UNIT, "self.gradient.zero_()", "pass", (_SUMS,)),
    Mutant(_STATES, "unit.reduced.mul_(factor)", "pass", (_SUMS,)),
    Mutant(_STEP, "return loss, squares**0.5", "return loss, squares", (_SUMS,)),
    Mutant(_SYNC, "unit.reduced.add_(into)", "unit.reduced.copy_(into)", (_REDUCTION,)),
    Mutant(
        _SYNC,
        "unit.reduced[low : low + size] += packed",
        "unit.reduced[low : low + size] = packed",
        ("tests/runtime/pipeline/test_mutations.py",),
    ),
    Mutant(_LOSS, "weight = self._sums[1]", "weight = self._sums[0]", (_WEIGHTED,)),
    Mutant(_LOSS, "max(self._view.loss_tokens, 1)", "self._view.tokens", (_SUMS,)),
    Mutant(_LOSS, "(losses * weights.to(exact)).sum()", "losses.sum()", (_SUMS,)),
    Mutant(
        _STEP, "total = total + loss.detach().double()", "total = loss.detach().double()", (_SUMS,)
    ),
    Mutant(_STEP, "    optimizer.step()", "    pass", (_SUMS,)),
    Mutant(_TARGETS, "first, last = start + 1, min(", "first, last = start, min(", (_WEIGHTED,)),
    Mutant(_TARGETS, "weights[labels == NO_LABEL] = 0.0", "pass", (_WEIGHTED,)),
    Mutant(
        "runtime/huggingface/progress.py", "        group.update(before)", "        pass", (_SUMS,)
    ),
    Mutant(
        _SAVED, "for _, older in _complete(root)[:-keep]:", "for _, older in []:", (_CHECKPOINT,)
    ),
    Mutant(_SAVED, "partial.rename(final)", "shutil.copytree(partial, final)", (_CHECKPOINT,)),
    Mutant(
        _SAVED,
        "        stored.fill(part, states, optimizer, buffers)",
        "        pass",
        (_CHECKPOINT,),
    ),
    Mutant(
        "runtime/checkpoint/checkpoint_files.py",
        "    _LOCKS[folder] = file",
        "    file.close()",
        (_DAMAGE,),
    ),
    Mutant(_AHEAD, "if stated != expected:", "if False:", (_CONSUMER,)),
    Mutant(_AHEAD, "return len(self._kept) < self._steps or within", "return True", (_CONSUMER,)),
    Mutant("runtime/data/tokens.py", "labels[end - 1] = NO_LABEL", "pass", (_TOKENS,)),
    Mutant(
        "runtime/sources/agreement.py", "if record.digest != first.digest:", "if False:", (_AGREE,)
    ),
    Mutant("runtime/sources/agreement.py", "if record.step != first.step:", "if False:", (_AGREE,)),
    Mutant(
        "runtime/sources/http_source.py",
        "if answer.etag != f'\"{view.digest}\"':",
        "if False:",
        (_HTTP,),
    ),
    Mutant(
        _ROUTES, "frozenset({408, 425, 429, 500, 502, 503, 504})", "frozenset({502, 503})", (_HTTP,)
    ),
    Mutant(_ACKS, "                    self.append(entry)\n", "", (_OUTAGE,)),
    Mutant(_PARTS, "return not self.paused and", "return", (_SAVED_BYTES,)),
    Mutant(_PARTS, '"half_products": 2}', '"half_products": 1}', (_MODES,)),
    Mutant(_PARTS, "        with _pop_mode_temporarily():", "        if True:", (_MODES,)),
    Mutant(_PARTS, "map(_drop_rest, arguments)", "arguments", (_MODES, _MODED)),
    Mutant(
        "runtime/sequence_parallel/context.py",
        "recompute=micro_batch.recompute",
        "recompute=None",
        (_MODED,),
    ),
    Mutant(_SWITCH, "            restore()", "            pass", (_ATTACHED,)),
    Mutant(_SWITCH, "name in LAYER_MODES or ", "", (_ATTACHED,)),
    Mutant(
        "runtime/huggingface/probe.py",
        "            model.recomputation.remove(mode)",
        "            pass",
        (_ATTACHED,),
    ),
    Mutant(_ACKS, "self._next_try = 0.0  # the service has just answered", "return", (_HTTP,)),
)
