"""Values that must be equal on every rank and are not synchronized: compared once, at the start.

Trainable parameters take the first rank's values. Frozen ones and buffers stay as each rank loaded
them, so that a wrong seed or a file that failed to load on one node would train on without an
error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from seqplan.runtime.errors import communicating

_CHUNK = 1 << 24
"""Elements that a checksum takes at a time: its products need 16 bytes each."""


def check_no_batch_norm(model: nn.Module) -> None:
    """Reject batch normalization. ``ValueError`` with the module's name.

    Its statistics would be of the tokens that a rank happens to hold.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"{name or 'the model'} ({type(module).__name__}) normalizes over all tokens of a "
                "call, of which each rank holds some. Use LayerNorm or RMSNorm"
            )


def check_equal_models(
    model: nn.Module, group: dist.ProcessGroup, split: Collection[str] = ()
) -> None:
    """Compare the ranks' models: names, shapes and dtypes of all, values of the frozen.

    Collective. ``ValueError`` on every rank, naming the first tensor that differs and the first
    rank that differs. Values are compared by a 64-bit checksum of their bytes. ``split``: names of
    parameters whose values differ, as each rank has its part of the first rank's.
    """
    tensors = [
        (name, tensor, trained or name in split) for name, tensor, trained in _tensors(model)
    ]
    check_equal_tensors(tensors, group)


def check_equal_tensors(
    tensors: Sequence[tuple[str, Tensor, bool]],
    group: dist.ProcessGroup,
    device: torch.device | None = None,
) -> None:
    """Compare tensors over the ranks, each with its name and whether it is trained.

    Collective; errors as of ``check_equal_models``. ``device``: where ``group``
    communicates, that of the tensors by default.
    """
    frozen = [(name, tensor) for name, tensor, trained in tensors if not trained]
    shapes = [f"{name} {tuple(t.shape)} {t.dtype} {trained}" for name, t, trained in tensors]
    if device is None:
        device = next((tensor.device for _, tensor, _ in tensors), torch.device("cpu"))
    counts = torch.tensor([len(tensors), len(frozen)], dtype=torch.int64, device=device)
    everyone = [other.tolist() for other in gather_equal_shapes(counts, group)]
    for rank, (total, untrained) in enumerate(everyone):
        if [total, untrained] != everyone[0]:
            raise ValueError(
                f"the model of rank {rank} has {total} parameters and buffers, {untrained} of "
                f"them not trained; rank 0's has {everyone[0][0]} and {everyone[0][1]}"
            )
    _check_equal(
        [name for name, _, _ in tensors],
        torch.tensor([_number(shape) for shape in shapes], dtype=torch.int64, device=device),
        group,
        "differs in shape, dtype or in being trained: make the same model on every rank",
    )
    _check_equal(
        [name for name, _ in frozen],
        torch.stack([checksum(tensor).to(device) for _, tensor in frozen])
        if frozen
        else torch.zeros(0, dtype=torch.int64, device=device),
        group,
        "is not trained and has other values: load the same weights and buffers on every rank",
    )


def checksum(tensor: Tensor) -> Tensor:
    """Return a 64-bit checksum of a tensor's bytes and their order, int64, on its device."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.to(torch.uint8)
    flat = flat.view(torch.uint8)
    if flat.numel() % 4 == 0:
        flat = flat.view(torch.int32)
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for start in range(0, flat.numel(), _CHUNK):
        words = flat[start : start + _CHUNK].to(torch.int64)
        places = torch.arange(start, start + len(words), dtype=torch.int64, device=tensor.device)
        # Odd multipliers, spread by the golden ratio; sums wrap around, equally on every device.
        multipliers = places * -7046029254386353131 + 1442695040888963407
        total = total + ((words + 1) * (multipliers | 1)).sum()
    return total


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, bool]]:
    """Yield name, tensor and whether it is trained, of all parameters and buffers."""
    for name, parameter in model.named_parameters():
        yield name, parameter, parameter.requires_grad
    # With duplicates: where a document was long, transformers makes one buffer of two.
    for name, buffer in model.named_buffers(remove_duplicate=False):
        yield name, buffer, False


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big", signed=True)


def _check_equal(names: list[str], mine: Tensor, group: dist.ProcessGroup, how: str) -> None:
    everyone = torch.stack(gather_equal_shapes(mine, group))
    differing = (everyone != everyone[0]).any(0).nonzero().flatten().tolist()
    if differing:
        at = differing[0]
        rank = int((everyone[:, at] != everyone[0, at]).nonzero()[0])
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise ValueError(f"{names[at]}{more} of rank {rank} {how}")


def gather_equal_shapes(mine: Tensor, group: dist.ProcessGroup) -> list[Tensor]:
    """Return every rank's tensor, all of one shape and dtype, in rank order; collective."""
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    with communicating("comparing the ranks' models"):
        dist.all_gather(everyone, mine, group=group)
    return everyone
