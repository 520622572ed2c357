"""Tensor parallelism whose groups change from step to step (Megatron, arXiv 1909.08053).

Read ``split`` first (the products, the embedding and the loss of a tp rank), then ``groups`` (the
collectives that they need, by process groups or by messages).
"""
