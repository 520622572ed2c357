"""A rank that is watched: ``watched.py END``, which is ``block``, ``raise`` or ``return``.

Rank 1 ends so; the others wait as for a kernel that never ends, unless it returns.
"""

import sys
import threading

import torch.distributed as dist

from seqplan import runtime


def main(end: str) -> None:
    """Join the group and end as requested."""
    dist.init_process_group("gloo")
    with runtime.training.watch_ranks(grace_s=0.0):
        print("ready", flush=True)
        if end == "raise" and dist.get_rank() == 1:
            raise ValueError("no such step")
        if end != "return":
            threading.Event().wait()
    print("left", flush=True)
    dist.destroy_process_group()


main(sys.argv[1])
