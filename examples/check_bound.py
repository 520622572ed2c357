"""Check a proven bound without seqplan: ``python examples/check_bound.py witness.json``.

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

import itertools
import json
import math
import sys

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


def least_c(k):
    return min(m["c"] for m in k.get("modes", [k]))


def padded(k, length):
    return -(-length // k["pad_to"]) * k["pad_to"]


def even_states(k, time, lengths, counts, number, resources):
    """Shares of every sequence for V = 1 … number micro-batches, none much above the others.

    The last state is for V ≥ number, which have all tokens that their work allows. Yields lists of
    shares, None for a sequence that cannot be in such a pipeline.
    """
    stages, c, most = k["stages"], least_c(k), k["max_tokens"]
    per_work = max(padded(k, length) / work(k, length) for length in lengths)
    for v in range(1, number + 1):
        last = v == number
        of = range(v, v + 2000) if last else (v,)
        if stages == 1:
            offered, largest = max(time - c * v, 0), max(time - c * v, 0)
        else:
            budgets = [max(time / (n + stages - 1) - c, 0) for n in of]
            offered, largest = max(n * x for n, x in zip(of, budgets, strict=True)), budgets[0]
        in_mode = None
        if "modes" in k and stages == 1 and v <= 2 and not last:
            in_mode = in_modes(k, v, time, lengths, counts)
        shares = []
        for place, length in enumerate(lengths):
            w, tokens = work(k, length), padded(k, length)
            if w > largest * SLACK or tokens > most:
                shares.append(None)
                continue
            large_work = w > largest * (0.5 + 1e-9)
            places = 1 if stages == 1 else v
            share = [
                w / max(offered, 1e-12),
                tokens / max(v * most, offered * per_work if last else 0),
                0 if last else large_work / places,
                0 if last else (2 * tokens > most) / v,
            ]
            if in_mode:
                share[1] = in_mode[place]
            if resources > 4:
                # The largest micro-batch costs no less than their mean.
                share.append(cost(k, length) / (time if last else time * v / (v + stages - 1)))
            if resources > 5 and stages == 1:
                share.append(share[4])
            elif resources > 5:
                part, taken = in_one_mode(k, length, time / (v + stages - 1))
                share.append(taken / time if last else part / v)
            shares.append(share)
        yield shares


def peaked_states(k, time, lengths, levels, even, resources):
    """With stages: shares if the largest micro-batch, above all even ones, is in [level, next)."""
    if k["stages"] == 1:
        return
    bubbles, c = k["stages"] - 1, least_c(k)
    covered = max(time / (even + bubbles) - c, 0)
    for place, level in enumerate(levels):
        high = work(k, levels[place + 1]) if place + 1 < len(levels) else math.inf
        low = max(work(k, level), covered)
        left = max(time - bubbles * (low + c), 0)
        # M > β: at most τ/(M + c) − (pp − 1) micro-batches of M, most at the best M of the level.
        best = math.sqrt(time * c / bubbles) - c
        best = min(max(best, low), max(low, high))
        offered = max(best * (time / max(best + c, 1e-300) - bubbles), 0)
        offered = min(offered, left - 2 * c)
        shares = []
        for length in lengths:
            w, tokens = work(k, length), padded(k, length)
            if w > offered * SLACK or tokens > k["max_tokens"] or w >= high or high <= covered:
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


def check_prices(witness):
    time, lengths, values = witness["bound_ms"], witness["lengths"], witness["values"]
    for k in witness["classes"]:
        levels = witness["levels"] if k["stages"] > 1 else []
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
        [k[x] for x in ("stages", "a", "b", "c", "max_tokens", "pad_to")] + [k.get("modes")]
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


def fits_in_counts(witness, time, ending):
    """Whether ranks may hold all work in whole micro-batches.

    A micro-batch takes its time on every rank of its group, at least the least overhead of all, and
    each of its tokens a share of what its own overhead is above that. Those of many tokens have
    fewer schemes and modes: a token takes more than the least work there. At most v of them pay for
    their tokens by ``prices``; w > v leave time − w·c for work. With s further stages w of them end
    after their sum and s times their mean, so that time·w / (w + s) is left. Tried for every number
    n of ranks with at most v: what all do is concave in n.
    """
    classes, ranks = witness["classes"], witness["gpus"]
    c = min(k["c"] for k in classes)
    s = min(k["stages"] for k in classes) - 1
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

    def all_work(n, v):
        few = few_work(n, v, time * v / max(v + s, 1), most, lines, most_work)
        numbers = range(v + 1, max(sequences, v + 1) + 1)
        return few + (ranks - n) * max(0, *(time * w / (w + s) - w * c for w in numbers))

    worked = (most_of_concave(lambda n, v=v: all_work(n, v), ranks) for v in range(5))
    return all(work_ms >= total * (1 - 1e-9) for work_ms in worked)


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
        filled = min((k["stages"] - 1) * (work(k, length) + k["c"]) for k in by_then)
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
    return f"all sequences could end by {time} ms as far as GPU-time says"


CHECKS = {"prices": check_prices, "cases": check_cases, "gpu_time": check_gpu_time}

if __name__ == "__main__":
    try:
        with open(sys.argv[1]) if len(sys.argv) > 1 else sys.stdin as file:
            witness = json.load(file)
        check = CHECKS[witness["proof"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"no witness: {error}. seqplan explain --witness writes one")
    if failed := check(witness):
        sys.exit(f"not proven: {failed}")
    print(f"proven: no plan takes less than {witness['bound_ms']:.3f} ms")
