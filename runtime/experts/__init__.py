"""Expert parallelism: blocks of ranks that hold all experts together, and their exchanges.

Read ``blocks`` (a rank's place in its block, and the split of a model's experts), ``dispatch``
(tokens to the ranks of their experts and back), then ``micro_steps`` (micro-steps in which a rank
has no tokens). Rank r holds the experts of index r mod E for the whole job (``plans.experts``).
"""
