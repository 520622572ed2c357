"""Ranks of CPUs that run a step through Megatron's pipeline stages, planned or not.

``python megatron_stages.py SCHEDULER PLANNED FILE`` writes the losses and gradients. Megatron's
schedule, transfers between stages and gradients are real; the model's stages are small layers, as
attention over packed sequences needs a GPU. Its calls of CUDA are mapped to the CPU.
"""

import json
import os
import sys
import tempfile
import traceback
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from megatron.core import parallel_state
from megatron.core.datasets import data_schedule
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

from seqplan import Cost
from seqplan.integrations import megatron

STAGES, REPLICAS = 3, 2
HIDDEN, VOCAB, SAMPLES = 16, 50, 24
CAPACITY = 640
"""Tokens of a micro-batch on a rank; the longest samples need both replicas under dynamic CP."""


def main(scheduler: str, planned: str, path: str) -> None:
    """Run the ranks and write what they return."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = (scheduler, planned == "planned", f"{folder}/store", path)
        # Forked, so that Megatron is imported once.
        mp.start_processes(_run, arguments, nprocs=STAGES * REPLICAS, start_method="fork")


def _run(rank: int, *arguments: Any) -> None:
    try:
        _run_rank(rank, *arguments)
    except BaseException:
        traceback.print_exc()  # the others wait for this rank
        os._exit(1)


def _run_rank(rank: int, scheduler: str, planned: bool, store: str, path: str) -> None:
    _map_cuda_to_cpu()
    torch.set_num_threads(1)
    os.environ["RANK"] = str(rank)
    world = STAGES * REPLICAS
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world)
    if planned:
        megatron.install(Cost(1e-5, 1e-2, 0.1))
    dynamic = scheduler == megatron.DYNAMIC
    options = {"dynamic_context_parallel": True} if dynamic else {}
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=STAGES, **options)
    config = _make_config(scheduler, dynamic)
    more = {"dynamic_cp": True, "config": config} if dynamic else {}
    stage = parallel_state.get_pipeline_model_parallel_rank()
    model = _Stage(stage, config)
    iterator = None
    # On main the stages between get the schedule from others, on the development branch all plan.
    if stage in (0, STAGES - 1) or not hasattr(data_schedule, "broadcast_to_pp_group"):
        iterator = iter([[sample] for sample in _draw(parallel_state.get_data_parallel_rank())])
    iterator, count, *_ = data_schedule.wrap_data_iterator(iterator, config, SAMPLES)
    tokens = []

    def step(batches: Any, stage_model: _Stage) -> Any:
        batch = data_schedule.get_batch_on_this_rank_for_sequence_packing(batches, **more)
        output = stage_model(batch)
        tokens.append(output.shape[0])
        return output, _sum_losses

    losses = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=iterator,
        model=[model],
        num_microbatches=count,
        seq_length=CAPACITY,
        micro_batch_size=1,
        forward_only=False,
    )
    replicas = parallel_state.get_data_parallel_group(with_context_parallel=True)
    loss = torch.tensor(sum(float(part["loss"]) for part in losses), dtype=torch.float64)
    dist.all_reduce(loss, group=replicas)
    gradients = {}
    for name, parameter in model.named_parameters():
        dist.all_reduce(parameter.grad, group=replicas)
        gradients[f"{stage}.{name}"] = parameter.grad.flatten().tolist()
    facts = {"loss": float(loss), "gradients": gradients, "count": count, "tokens": tokens}
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, facts | {"figures": dict(megatron.figures)})
    if rank == 0:
        with open(path, "w") as file:
            json.dump(gathered, file)
    dist.barrier()
    dist.destroy_process_group()


def _make_config(scheduler: str, dynamic: bool) -> Any:
    config: Any = TransformerConfig(
        num_layers=STAGES,
        hidden_size=HIDDEN,
        num_attention_heads=1,
        pipeline_model_parallel_size=STAGES,
        variable_seq_lengths=True,
        pipeline_dtype=torch.float32,
        calculate_per_token_loss=True,
        batch_p2p_comm=False,
        moe_token_dispatcher_type="alltoall",
    )
    config.sequence_packing_scheduler = scheduler
    config.max_seqlen_per_dp_cp_rank = CAPACITY if dynamic else REPLICAS * CAPACITY
    config.min_dynamic_context_parallel_size = 1
    config.cp_partition_mode = "contiguous"  # the other partition needs Transformer Engine
    return config


class _Stage(torch.nn.Module):
    """A stage of a model of tokens: an embedding, a layer on each, the loss of each."""

    def __init__(self, stage: int, config: Any) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.config, self.input_tensor = config, None
        self.embedding = torch.nn.Embedding(VOCAB, HIDDEN) if stage == 0 else None
        self.layer = torch.nn.Linear(HIDDEN, HIDDEN)
        self.head = torch.nn.Linear(HIDDEN, VOCAB) if stage == STAGES - 1 else None

    def set_input_tensor(self, tensor: Any) -> None:
        """Set the input that the stage before has sent; Megatron calls it."""
        self.input_tensor = tensor[0] if isinstance(tensor, list) else tensor

    def forward(self, batch: Any) -> Any:
        hidden: Any = self.input_tensor
        if self.embedding is not None:
            hidden = self.embedding(batch[0]).transpose(0, 1)
        hidden = torch.tanh(self.layer(hidden))
        if self.head is None:
            return hidden
        logits = self.head(hidden).squeeze(1)
        return torch.nn.functional.cross_entropy(logits, batch[1][0], reduction="none")


def _sum_losses(output: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    total = output.sum()
    return total, torch.tensor(output.numel(), dtype=torch.int), {"loss": total.detach()}


def _draw(replica: int) -> list[dict[str, torch.Tensor]]:
    """Draw the samples that a replica loads."""
    chance = torch.Generator().manual_seed(replica)
    samples = []
    for number in range(SAMPLES):
        length = 16 * int(torch.randint(1, 9, (1,), generator=chance)) * (8 if number < 3 else 1)
        tokens = torch.randint(0, VOCAB, (length,), generator=chance)
        lengths = torch.tensor([length], dtype=torch.int32)
        samples.append(
            {
                "tokens": tokens,
                "labels": (7 * tokens + 3) % VOCAB,
                "loss_mask": torch.ones(length),
                "position_ids": torch.arange(length),
                "original_seq_len": lengths,
                "padded_seq_len": lengths,
            }
        )
    return samples


def _map_cuda_to_cpu() -> None:
    """Let Megatron's calls of CUDA act on the CPU."""
    cuda, tensor = torch.cuda, torch.Tensor
    cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]
    cuda.synchronize = lambda *_: None
    tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign, misc]
    barrier = dist.barrier
    dist.barrier = lambda group=None, **_: barrier(group)
    for name in ("zeros", "empty", "tensor"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))


def _on_cpu(make: Any) -> Any:
    def on_cpu(*arguments: Any, **options: Any) -> Any:
        if str(options.get("device", "")).startswith("cuda"):
            options["device"] = "cpu"
        return make(*arguments, **options)

    return on_cpu


if __name__ == "__main__":
    main(*sys.argv[1:])
