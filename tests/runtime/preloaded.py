"""What every rank of a test needs: imported once, in the server that ranks are forked from."""

from importlib import import_module

import torch

for name in (
    "torch._dynamo",  # an optimizer imports it when it is made, which takes seconds
    "torch.distributed.checkpoint",
    "seqplan.runtime.states.checkpoint",
    "seqplan.runtime.steps.consumer",
    "seqplan.runtime.training.run_step",
):
    import_module(name)

torch.set_num_threads(1)
