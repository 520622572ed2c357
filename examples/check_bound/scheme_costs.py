"""What sequences cost on a scheme of a witness, in any recomputation mode that holds them."""

import functools
import math

SLACK = 1 + 1e-9  # against rounding, everywhere in the plan's favor


def modes_that_hold(k, length):
    holding = [m for m in k.get("modes", [k]) if padded(k, length) <= m["max_tokens"]]
    return holding or k["modes"][-1:] if "modes" in k else [k]


def work(k, length):
    return min(length * (m["a"] * length + m["b"]) for m in modes_that_hold(k, length))


def cost(k, length):
    """Work and the tokens' part of c, in the mode for which both together are least."""
    tokens = padded(k, length)
    return min(
        length * (m["a"] * length + m["b"]) + m["c"] / m["max_tokens"] * tokens
        for m in modes_that_hold(k, length)
    )


def least_c(k):
    return min(m["c"] for m in k.get("modes", [k]))


def padded(k, length):
    return -(-length // k["pad_to"]) * k["pad_to"]


def bubbles(k, v):
    return idle_of(k["stages"], *k["forward"], v)


@functools.cache
def idle_of(stages, least, most, v):
    """By how many more of the mean, and of the largest, of v micro-batches stages in 1F1B idle.

    A path goes down to the last stage with micro-batch i, which costs its forwards on the others,
    less the backwards of those before it that are still to come; and up with one after it, which
    costs its backwards, less the forwards after it that have run. If both cost little, the
    micro-batches before and after are small, and so is each one. Going down costs no smaller a
    part of both for later ones: no sum of sizes is larger than with one part for all.
    """
    filled, drained = growth(stages, v, least), growth(stages, v, 1 - most)[::-1]
    parts = [1 / (1 + filled[n] / drained[n]) for n in range(v)]
    whole = max(
        sum(min(part * filled[n] if part else math.inf, (1 - part) * drained[n]) for n in range(v))
        for part in parts
    )
    largest = max(1 / (1 / filled[n] + 1 / drained[n]) for n in range(v))
    return (stages - 1) * v / whole, (stages - 1) / largest


def growth(stages, v, share):
    """How large the n-th from an end can be, as a multiple of what going down or up there costs."""
    sizes = []
    for _ in range(v):
        near = sum(sizes[-(stages - 1) :]) / (stages - 1)
        sizes.append((1 + (1 - share) * near) / share if share else math.inf)
    return sizes


def bubbles_of_mean(classes, v):
    """Of micro-batches in modes of any of the classes; of more than 128 those of any number."""
    stages = {k["stages"] for k in classes}
    if 1 in stages or v > 128:
        return min(least_bubbles(k) for k in classes)
    least, most = (pick(k["forward"][n] for k in classes) for n, pick in enumerate((min, max)))
    return min(idle_of(s, least, most, v)[0] for s in stages)


def least_bubbles(k):
    return (k["stages"] - 1) * max(1 - 2 * k["forward"][1], 0)
