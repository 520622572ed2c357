"""Recomputation modes in the transformer block of the megatron-core that is installed."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("megatron.core")

PROGRAM = r"""
import json, warnings
warnings.filterwarnings("ignore")
from contextlib import nullcontext
from types import SimpleNamespace
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import transformer_block
from megatron.core.transformer.transformer_config import TransformerConfig
from seqplan.integrations.megatron_recomputation import install_recomputation

torch.distributed.init_process_group("gloo", rank=0, world_size=1)
parallel_state.initialize_model_parallel()
# Its places for CUDA devices, and its checkpoints, which copy their random state.
torch.cuda.current_device = lambda: torch.device("cpu")
tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)
checkpoints = []

def checkpoint(function, distribute, *arguments):
    checkpoints.append(function)
    return torch.utils.checkpoint.checkpoint(function, *arguments, use_reentrant=False)

tensor_parallel.checkpoint = checkpoint
sizes = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4}
config = TransformerConfig(
    **sizes, use_cpu_initialization=True, attention_dropout=0.0, hidden_dropout=0.0
)
block = transformer_block.TransformerBlock(config, get_gpt_layer_local_spec())

def gradients(tokens):
    block.zero_grad()
    checkpoints.clear()
    hidden = torch.randn(tokens, 1, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, 1, tokens, tokens).triu(1).bool()
    block(hidden_states=hidden.requires_grad_(), attention_mask=mask).square().sum().backward()
    return [p.grad.clone() for p in block.parameters()], len(checkpoints)

plain = [gradients(tokens)[0] for tokens in (8, 9)]
install_recomputation({"none": 8, "full": 20})
moded = [gradients(tokens) for tokens in (8, 9)]
print(json.dumps({
    "checkpoints": [count for _, count in moded],
    "equal": [all(map(torch.equal, a, b)) for a, (b, _) in zip(plain, moded)],
    "granularity": config.recompute_granularity,
}))
"""


def test_long_micro_batches_alone_are_computed_again() -> None:
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "checkpoints": [0, 2],
        "equal": [True, True],
        "granularity": None,
    }
