"""What sequences cost on a scheme of a witness, in any recomputation mode that holds them."""

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
