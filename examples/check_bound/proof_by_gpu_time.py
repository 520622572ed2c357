"""The proof "gpu_time": all sequences need more than the GPUs have, or the longest in a row."""

import math

from scheme_costs import SLACK, bubbles_of_mean, least_bubbles, padded, work


def fits_in_counts(witness, time, ending):
    """Whether ranks may hold all work in whole micro-batches.

    A micro-batch takes its time on every rank of its group, at least the least overhead of all, and
    each of its tokens a share of what its own overhead is above that. Those of many tokens have
    fewer schemes and modes: a token takes more than the least work there. At most v of them pay for
    their tokens by ``prices``; w > v leave time − w·c for work. With s bubbles of so many they end
    after their sum and s times their mean, so that time·w / (w + s) is left. Tried for every number
    n of ranks with at most v: what all do is concave in n.
    """
    classes, ranks = witness["classes"], witness["gpus"]
    c = min(k["c"] for k in classes)
    sequences = sum(witness["counts"])
    items, above = [], {}
    for length, count, by_then in ending:
        tokens = min(padded(k, length) for k in by_then)
        on_ranks = [
            k["gpus"] * (work(k, length) + (k["c"] - c) / k["max_tokens"] * padded(k, length))
            for k in by_then
        ]
        for k, ms in zip(by_then, on_ranks, strict=True):
            more = (ms - min(on_ranks)) / tokens
            above[k["scheme"]] = min(more, above.get(k["scheme"], math.inf))
        items.append((min(on_ranks), tokens, count))
    items.sort(key=lambda item: -item[0] / item[1])  # most work a token first
    total = sum(work_ms * count for work_ms, _, count in items)
    room = [
        (k["max_tokens"] / k["gpus"], above[k["scheme"]]) for k in classes if k["scheme"] in above
    ]
    lines = prices(c, room)
    most = max(tokens for tokens, _ in room)

    def most_work(tokens):
        reached = 0.0
        for work_ms, own, count in items:
            if own * count >= tokens:
                return reached + work_ms / own * tokens
            tokens -= own * count
            reached += work_ms * count
        return reached

    def in_time(w):
        return time * w / (w + bubbles_of_mean(classes, w))

    def all_work(v):
        numbers = range(v + 1, max(sequences, v + 1) + 1)
        left = max(0, *(in_time(w) - w * c for w in numbers))
        few_time = in_time(v) if v else 0
        return most_of_concave(
            lambda n: few_work(n, v, few_time, most, lines, most_work) + (ranks - n) * left, ranks
        )

    return all(all_work(v) >= total * (1 - 1e-9) for v in range(5))


def most_of_concave(value, high):
    low = 0
    while high - low > 2:
        left, right = (2 * low + high) // 3, (low + 2 * high + 2) // 3
        if value(left) < value(right):
            low = left
        else:
            high = right
    return max(value(n) for n in range(low, high + 1))


def prices(c, room):
    """Lines below what a micro-batch takes beyond the least work: its c, and more for its tokens.

    ``room``: of each scheme the tokens of a micro-batch, and what one takes more at least. Pairs of
    the time of each micro-batch and the time of a token; the first has time for tokens alone.
    """
    points = [(tokens, c + tokens * more) for tokens, more in room]
    slope, start = min((ms / tokens, tokens) for tokens, ms in points)
    lines, at = [(0.0, slope)], (start, slope * start)
    while later := [point for point in points if point[0] > at[0]]:
        slope, tokens = min(((ms - at[1]) / (t - at[0]), t) for t, ms in later)
        lines.append((at[1] - slope * at[0], slope))
        at = (tokens, at[1] + slope * (tokens - at[0]))
    return lines


def few_work(n, v, time, most, lines, most_work):
    """The most work of n places with at most v micro-batches each: as tokens and time allow."""
    low, high = 0.0, n * v * most

    def left(tokens):
        return n * time - max(n * v * each + tokens * token for each, token in lines)

    if most_work(high) <= left(high):
        return most_work(high)
    for _ in range(20):
        middle = (low + high) / 2
        if most_work(middle) > left(middle):
            high = middle
        else:
            low = middle
    return max(left(low), 0.0)


def check_gpu_time(witness):
    time, gpus = witness["bound_ms"], witness["gpus"]
    area, longest, ending = 0.0, [], []
    for length, count in zip(witness["lengths"], witness["counts"], strict=True):
        by_then = [
            k
            for k in witness["classes"]
            if padded(k, length) <= k["max_tokens"]
            and k["stages"] * (work(k, length) + k["c"]) <= time * SLACK
        ]
        if not by_then:
            return None  # this sequence alone takes longer
        ending.append((length, count, by_then))
        tokens = {k["scheme"]: padded(k, length) / k["max_tokens"] for k in by_then}
        shared = [(k["gpus"], work(k, length) + k["c"] * tokens[k["scheme"]]) for k in by_then]
        area += count * min(size * ms for size, ms in shared)
        alone = all(2 * part > 1 for part in tokens.values())
        plain = min(work(k, length) for k in by_then), min(k["c"] for k in by_then)
        apart = min(work(k, length) + k["c"] for k in by_then)
        filled = min(least_bubbles(k) * (work(k, length) + k["c"]) for k in by_then)
        least = min(size for size, _ in shared)
        row = (least, min(ms for _, ms in shared), plain, apart, alone, filled, shared)
        longest += [row] * count
    if area > gpus * time * (1 - 1e-9):
        return None
    for size in sorted({row[0] for row in longest}):
        rows = [row for row in longest if row[0] >= size]  # the longest need the largest groups
        places = gpus // size
        if places == 0:
            return None
        taken = sum(min(max(g // size, 1) * ms for g, ms in row[6]) for row in rows)
        if taken > places * time * (1 - 1e-9):
            return None
        for number in range(1, (len(rows) - 1) // places + 1):
            last = number * places
            run = rows[last - number : last + 1]  # the shortest of them that can be in one place
            in_a_row = max(sum(r[1] for r in run), sum(r[2][0] for r in run) + run[-1][2][1])
            if run[-1][4]:
                in_a_row = max(in_a_row, sum(r[3] for r in run))
            if in_a_row + run[0][5] > time * (1 - 1e-9):
                return None
    if not fits_in_counts(witness, time, ending):
        return None
    return f"GPU-time leaves room for all sequences by {time} ms"
