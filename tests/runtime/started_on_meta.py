"""A hosted model of which the first rank alone has values."""

import torch

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}


def start_on_meta(rank: int, world_size: int) -> tuple[list[str], float]:
    """Attach; names of tensors without values, and their greatest difference."""
    import transformers

    from seqplan import huggingface
    from seqplan.runtime.data.tokens import SeededTokens

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True)
    loaded = transformers.LlamaForCausalLM(config)
    model = loaded
    if rank:
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
    job = huggingface.attach(
        model,
        SeededTokens(64, 0),
        optimizer=lambda named: torch.optim.SGD([value for _, value in named], lr=0.1),
        device=torch.device("cpu"),
    )
    named = dict(model.named_parameters()) | dict(model.named_buffers())
    wanted = dict(loaded.named_parameters()) | dict(loaded.named_buffers())
    assert named.keys() == wanted.keys()
    lacking = [name for name, value in named.items() if value.is_meta]
    differences = [float((named[name] - value).abs().max()) for name, value in wanted.items()]
    job.close()
    return lacking, max(differences)
