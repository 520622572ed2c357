"""The proof "prices": all values exceed what all pipelines can hold at their prices.

And "cases": one such proof for each scheme that may run the longest sequence.
"""

import itertools
import json
import math

from scheme_costs import (
    SLACK,
    bubbles,
    cost,
    least_bubbles,
    least_c,
    modes_that_hold,
    padded,
    work,
)


def in_modes(k, number, time, lengths, counts):
    """The least part of so many micro-batches that each length takes, of any modes they can have.

    Modes are filled from that of the least mean work a token on, until time is out: then a token in
    one of them costs what it saves over the last one. If all are full in time, tokens alone count.
    """

    def of_mode(m, length):
        return length * (m["a"] * length + m["b"])

    def per_token(m):
        held = [
            (n, length)
            for n, length in zip(counts, lengths, strict=True)
            if padded(k, length) <= m["max_tokens"]
        ]
        tokens = sum(n * padded(k, length) for n, length in held)
        return sum(n * of_mode(m, length) for n, length in held) / max(tokens, 1)

    parts = [2.0] * len(lengths)
    modes = sorted(((per_token(m), m) for m in k["modes"]), key=lambda pair: pair[0])
    for chosen in itertools.combinations_with_replacement(modes, number):
        left = rest = time - sum(m["c"] for _, m in chosen)
        if left <= 0:
            continue
        last = None
        for w, m in chosen:
            rest -= w * m["max_tokens"]
            if rest <= 0:
                last = w
                break
        offered, in_time = (0, 0) if last is None else (left, 1)
        prices = [1 if last is None else max(last - w, 0) for w, _ in chosen]
        offered += sum(p * m["max_tokens"] for p, (_, m) in zip(prices, chosen, strict=True))
        for place, length in enumerate(lengths):
            tokens = padded(k, length)
            for price, (_, m) in zip(prices, chosen, strict=True):
                if tokens <= m["max_tokens"]:
                    taken = in_time * of_mode(m, length) + price * tokens
                    parts[place] = min(parts[place], taken / offered)
    return parts


def part_of_micro_batch(k, m, length, time):
    """What a sequence takes at least of a micro-batch of mode m and at most this time."""
    left = time - m["c"]
    if m["b"] * m["max_tokens"] < left:
        return min(padded(k, length) / m["max_tokens"], 2)  # its tokens end before the time does
    return min(length * (m["a"] * length + m["b"]) / max(left, 1e-9), 2)


def in_one_mode(k, length, time):
    """The least part of a micro-batch, and the least work and part of c, over all modes."""
    modes = [(m, part_of_micro_batch(k, m, length, time)) for m in modes_that_hold(k, length)]
    costs = (length * (m["a"] * length + m["b"]) + m["c"] * part for m, part in modes)
    return min(part for _, part in modes), min(costs)


def even_states(k, time, lengths, counts, number, resources):
    """Shares of every sequence for V = 1 … number micro-batches, none much above the others.

    The last state is for V ≥ number, which have all tokens that their work allows. Yields lists of
    shares, None for a sequence that cannot be in such a pipeline.
    """
    idle, c, most = least_bubbles(k), least_c(k), k["max_tokens"]
    per_work = max(padded(k, length) / work(k, length) for length in lengths)
    for v in range(1, number + 1):
        last = v == number
        of = range(v, v + 2000) if last else (v,)
        of_v = idle if last or not idle else bubbles(k, v)[0]
        if not idle:
            offered, largest = max(time - c * v, 0), max(time - c * v, 0)
        else:
            offered = max(n * max(time / (n + of_v) - c, 0) for n in of)
            largest = max(time / (v + idle) - c, 0)
        in_mode = None
        if "modes" in k and not idle and v <= 2 and not last:
            in_mode = in_modes(k, v, time, lengths, counts)
        shares = []
        for place, length in enumerate(lengths):
            w, tokens = work(k, length), padded(k, length)
            if w > largest * SLACK or tokens > most or not passes(k, length, time):
                shares.append(None)
                continue
            large_work = w > largest * (0.5 + 1e-9)
            places = v if idle else 1
            share = [
                w / max(offered, 1e-12),
                tokens / max(v * most, offered * per_work if last else 0),
                0 if last else large_work / places,
                0 if last else (2 * tokens > most) / v,
            ]
            if in_mode:
                share[1] = in_mode[place]
            if resources > 4:
                share.append(cost(k, length) / (time if last else time * v / (v + of_v)))
            if resources > 5 and not idle:
                share.append(share[4])
            elif resources > 5:
                part, taken = in_one_mode(k, length, time / (v + idle))
                share.append(taken / time if last else part / v)
            shares.append(share)
        yield shares


def peaked_states(k, time, lengths, levels, even, resources):
    """With bubbles: shares if the largest micro-batch, above even ones, is in [level, next)."""
    idle, c = least_bubbles(k), least_c(k)
    if not idle:
        return
    covered = max(time / (even + idle) - c, 0)
    for place, level in enumerate(levels):
        high = work(k, levels[place + 1]) if place + 1 < len(levels) else math.inf
        low = max(work(k, level), covered)
        left = max(time - idle * (low + c), 0)
        # M > β: at most τ/(M + c) − λ micro-batches of M, most at the best M of the level.
        best = math.sqrt(time * c / idle) - c
        best = min(max(best, low), max(low, high))
        offered = max(best * (time / max(best + c, 1e-300) - idle), 0)
        idle_of = [*(bubbles(k, v) for v in range(2, 65)), (0, idle)]  # the last of all larger v
        used = min(
            max(of_largest * (low + c), time * of_mean / (v + of_mean)) + c * v
            for v, (of_mean, of_largest) in enumerate(idle_of, 2)
        )
        offered = min(offered, max(time - used, 0))
        shares = []
        for length in lengths:
            w, tokens = work(k, length), padded(k, length)
            if w > offered * SLACK or tokens > k["max_tokens"] or w >= high or high <= covered:
                shares.append(None)
                continue
            if not passes(k, length, time):
                shares.append(None)
                continue
            counted = [
                tokens / k["max_tokens"],
                w >= high * (0.5 + 1e-9),
                2 * tokens > k["max_tokens"],
            ]
            taken = [w + c * n for n in counted]
            if "modes" in k:
                taken[0] = cost(k, length)
            share = [w / max(offered, 1e-12), *(ms / max(left, 1e-12) for ms in taken)]
            if resources > 4:
                share.append(share[1])
            if resources > 5:
                share.append(in_one_mode(k, length, high + c)[1] / max(left, 1e-12))
            shares.append(share)
        yield shares


def passes(k, length, time):
    """Whether a sequence alone passes all stages by then, in some mode."""
    alone = min(length * (m["a"] * length + m["b"]) + m["c"] for m in modes_that_hold(k, length))
    return k["stages"] * alone <= time * SLACK


def check_prices(witness):
    time, lengths, values = witness["bound_ms"], witness["lengths"], witness["values"]
    for k in witness["classes"]:
        levels = witness["levels"] if least_bubbles(k) else []
        even = len(k["mixes"]) - len(levels)
        resources = len(k["mixes"][0])
        states = [
            *even_states(k, time, lengths, witness["counts"], even, resources),
            *peaked_states(k, time, lengths, levels, even, resources),
        ]
        if k.get("runs_longest"):
            longest = lengths.index(max(lengths))
            states = [[None] * len(lengths) if s[longest] is None else s for s in states]
        for number, (shares, mix) in enumerate(zip(states, k["mixes"], strict=True)):
            if min(mix) < 0 or sum(mix) > SLACK:
                return f"{k['scheme']}, state {number}: a mix is of parts that sum to 1"
            for length, value, share in zip(lengths, values, shares, strict=True):
                if share is not None and value > 0:
                    held = k["price"] * sum(m * s for m, s in zip(mix, share, strict=True))
                    if value > held * SLACK + 1e-12:
                        return f"{k['scheme']}, state {number}: {length} tokens are worth more"
    needed = sum(v * n for v, n in zip(values, witness["counts"], strict=True))
    offered = sum(k["pipelines"] * k["price"] for k in witness["classes"])
    return None if needed > offered else f"values {needed} do not exceed prices {offered}"


def describe(k):
    """A class by its costs and limits alone, as text."""
    return json.dumps(
        [k[x] for x in ("stages", "forward", "a", "b", "c", "max_tokens", "pad_to")]
        + [k.get("modes")]
    )


def check_cases(witness):
    """One case for each scheme that holds the longest sequence, all of the same pipelines."""
    steps, runs_longest = set(), []
    for case in witness["cases"]:
        if case["bound_ms"] != witness["bound_ms"]:
            return "cases have different bounds"
        pipelines = {}
        for k in case["classes"]:
            pipelines[describe(k)] = pipelines.get(describe(k), 0) + k["pipelines"]
        steps.add(json.dumps([case["lengths"], case["counts"], sorted(pipelines.items())]))
        assumed = [k for k in case["classes"] if k.get("runs_longest")]
        if len(assumed) != 1 or assumed[0]["pipelines"] != 1:
            return "a case is of one pipeline that runs the longest sequence"
        runs_longest.append(describe(assumed[0]))
    if len(steps) != 1:
        return "cases are of different steps"
    first = witness["cases"][0]
    for k in first["classes"]:
        holds = padded(k, max(first["lengths"])) <= k["max_tokens"]
        if holds and describe(k) not in runs_longest:
            return f"no case has the longest sequence on {k['scheme']}"
    return next((failed for failed in map(check_prices, witness["cases"]) if failed), None)
