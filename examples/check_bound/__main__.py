"""Check a proven bound without seqplan: ``python examples/check_bound witness.json``.

``seqplan explain plans.jsonl --step K --witness --proposal proposal.json > witness.json`` writes
why no plan can end before its lower bound. This program knows the costs that are written there,
a·l² + b·l for a sequence and c for a micro-batch, and nothing else. Of several recomputation modes
each micro-batch has any that holds it. It assumes that a plan ends by T and finds too little room:

- proof "prices": whatever V micro-batches a pipeline runs by T, its sequences take at most all of
  its work, tokens, and places for large sequences. At the mix of these that is written for V no
  value is above price times share, so that a pipeline holds at most its price. All values exceed
  all prices.
- proof "gpu_time": on schemes that end each sequence by T alone, all take more than T on all GPUs;
  or the longest take more than T one after another, as few groups of their size fit side by side;
  or, in whole micro-batches, few of them hold too few tokens, and many leave too little time.
"""

import json
import sys

from proof_by_gpu_time import check_gpu_time
from proof_by_prices import check_cases, check_prices

CHECKS = {"prices": check_prices, "cases": check_cases, "gpu_time": check_gpu_time}

if __name__ == "__main__":
    try:
        with open(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin as file:
            witness = json.load(file)
        failed = CHECKS[witness["proof"]](witness)
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"no witness: {error}. seqplan explain --witness writes one")
    if failed:
        sys.exit(f"not proven: {failed}")
    print(f"proven: no plan takes less than {witness['bound_ms']:.3f} ms")
