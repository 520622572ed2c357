/* The greedy fill of one class of pipelines, compiled: the same operations on the same numbers, in the
 * same order, as greedy.py, which explains them. Every float has the same bits as there, so that
 * a plan does not depend on which of the two made it; tests compare them. exchange.c does the same
 * for exchange.py, and sized.c for micro-batches of given sizes.
 *
 * Nothing is kept between calls but the costs of a class (make_costs), which are checked once. The
 * unassigned sequences are the caller's array of counts. Memory is taken through Python, so that
 * tracemalloc counts it.
 *
 * SOURCE is the digest of fill_kernel.h, this file without the line that defines it, exchange.c
 * and sized.c. fill_kernel's caller compares it with the files beside it: a kernel that was built
 * from another text is not used.
 */
#define SOURCE "434b708cc3db5844"

#include "fill_kernel.h"

#define MOST_COUNTED 10000 /* micro_batch_sizes.MOST_COUNTED */
#define NEAR 2.0 /* micro_batch_sizes.NEAR */
#define MOST_EQUAL 16 /* micro_batch_sizes.MOST_EQUAL */
#define ANY_NUMBER INT32_MAX /* ramps.ANY_NUMBER */

static const double ROUND = 1.0 + 1e-12;

/* The unassigned sequences; ``next`` links over lengths of which none is left. */
typedef struct {
    int64_t size, left;
    const int64_t *lengths;
    int64_t *counts, *next;
} Pool;

/* ``number`` sequences of one length in a micro-batch; ``after``: the entry placed after it. */
typedef struct {
    int64_t index, number, after;
} Entry;

/* ``work``: without c. */
typedef struct {
    double work;
    int64_t tokens, entries, first, last, after, mode;
} MicroBatch;

/* ramps.Sizes; ``kept``: number of shares. */
typedef struct {
    double most_ms, largest;
    const double *shares;
    int64_t number, kept;
} Sizes;

/* greedy._Pipeline. */
typedef struct {
    double budget, limit;
    Sizes sizes;
    int64_t micro_batches, first, last, together;
} Pipeline;

/* One call's state: grows by need, freed at its end. */
typedef struct {
    const Costs *costs;
    Pool pool;
    Entry *entries;
    MicroBatch *micro_batches;
    Pipeline *pipelines;
    int64_t entry_count, entry_room, micro_count, micro_room, opened, count, most;
} Fill;

static double least(double first, double second) { return second < first ? second : first; }

static double most(double first, double second) { return second > first ? second : first; }

/* The first unassigned length at or after ``low`` that is at most ``limit``; ``size`` without one. */
static int64_t at_most(Pool *pool, int64_t limit, int64_t low) {
    int64_t high = pool->size, *next = pool->next;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (pool->lengths[middle] > limit)
            low = middle + 1;
        else
            high = middle;
    }
    while (next[low] != low) {
        next[low] = next[next[low]];
        low = next[low];
    }
    return low;
}

/* Add ``n`` sequences of length ``i`` to micro-batch ``m``; 0 where there is no memory. */
static int add_entry(Fill *fill, int64_t m, int64_t i, int64_t n) {
    Pool *pool = &fill->pool;
    if (!reserve((void **)&fill->entries, fill->entry_count, &fill->entry_room, sizeof(Entry)))
        return 0;
    int64_t e = fill->entry_count++;
    MicroBatch *micro = &fill->micro_batches[m];
    fill->entries[e] = (Entry){i, n, NONE};
    if (micro->last == NONE)
        micro->first = e;
    else
        fill->entries[micro->last].after = e;
    micro->last = e;
    micro->entries++;
    pool->left -= n;
    pool->counts[i] -= n;
    if (pool->counts[i] == 0) pool->next[i] = i + 1;
    return 1;
}

/* How many of ``count`` equal sequences fit the work and the tokens that are left; at least one. */
static int64_t how_many(int64_t count, double work, double cost, int64_t tokens, int64_t padded) {
    if (count <= 1) return count;
    double by_work = work / cost;
    if (tokens / padded < count) count = tokens / padded;
    if (by_work < (double)count) count = (int64_t)by_work;
    return count ? count : 1;
}

/* Put micro-batch ``m``, the next that is free, at the end of a pipeline. */
static void append_micro(Fill *fill, Pipeline *pipeline, int64_t m) {
    fill->micro_count++;
    if (pipeline->last == NONE)
        pipeline->first = m;
    else
        fill->micro_batches[pipeline->last].after = m;
    pipeline->last = m;
    pipeline->micro_batches++;
}

/* at_most, among the lengths that ``from`` skips to. */
static int64_t at_most_from(Pool *pool, int64_t limit, int64_t low, const int64_t *from) {
    int64_t high = pool->size, *next = pool->next;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (pool->lengths[middle] > limit)
            low = middle + 1;
        else
            high = middle;
    }
    for (;;) {
        low = from[low];
        if (next[low] == low) return low;
        while (next[low] != low) {
            next[low] = next[next[low]];
            low = next[low];
        }
    }
}

/* SequencePool.top_up into micro-batch ``m``: updates the work and the tokens that are left. ``first``:
 * the length that comes first, NONE without one. */
static int top_up(Fill *fill, int64_t m, double *work, int64_t *tokens, int64_t above, int64_t first,
                  int any_cost) {
    const Mode *mode = &fill->costs->modes[fill->micro_batches[m].mode];
    const int64_t *from = any_cost ? mode->held_from : mode->cheap_from;
    Pool *pool = &fill->pool;
    double four_a = 4 * mode->a, b_squared = mode->b * mode->b;
    int64_t i = 0;
    while (*work > 0) {
        if (first != NONE) {
            i = first;
            first = NONE;
        } else {
            double limit = 2 * *work / (mode->b + sqrt(b_squared + four_a * *work));
            i = at_most_from(pool, limit <= (double)*tokens ? (int64_t)limit : *tokens, i, from);
            if (i == pool->size) break;
        }
        if (pool->lengths[i] <= above) break;
        double cost = mode->work[i];
        int64_t padded = fill->costs->padded[i];
        if (padded > *tokens) {
            i++;
            continue;
        }
        int64_t n = how_many(pool->counts[i], *work, cost, *tokens, padded);
        *work -= (double)n * cost;
        *tokens -= n * padded;
        if (!add_entry(fill, m, i, n)) return 0;
    }
    return 1;
}

/* ramps.Sizes.of. */
static double size_of(const Sizes *sizes, int64_t place) {
    if (sizes->kept == 0) return sizes->most_ms;
    place -= sizes->number - sizes->kept;
    return least(sizes->most_ms, sizes->largest * sizes->shares[place > 0 ? place : 0]);
}

/* greedy._Pipeline._choose_first: the index, and the mode; NONE without one. */
static int64_t choose_first(Fill *fill, int64_t above, double size, int64_t together,
                            int64_t *chosen) {
    const Costs *costs = fill->costs;
    Pool *pool = &fill->pool;
    double reach[MOST_MODES], longest = 0.0;
    for (int64_t m = 0; m < costs->mode_count; m++) {
        const Mode *mode = &costs->modes[m];
        double room = size - mode->c;
        reach[m] = 0.0;
        if (room > 0) {
            double limit = 2 * room / (mode->b + sqrt(mode->b * mode->b + 4 * mode->a * room));
            reach[m] = least(limit, (double)mode->capacity);
        }
        longest = most(longest, reach[m]);
    }
    int64_t i = at_most(pool, (int64_t)longest, 0);
    if (i == pool->size || pool->lengths[i] <= above) return NONE;
    for (;; together = 1) {
        for (int64_t rank = 0; rank < costs->mode_count; rank++) {
            int64_t m = costs->preferred[i * costs->mode_count + rank];
            if ((double)pool->lengths[i] <= reach[m] &&
                costs->padded[i] <= costs->modes[m].capacity / together) {
                *chosen = m;
                return i;
            }
        }
        if (together == 1) return NONE;
    }
}

static int top_up_open(Fill *fill, Pipeline *pipeline, int64_t above, int64_t already_open,
                       int any_cost) {
    int64_t m = pipeline->first;
    for (int64_t j = 0; j < already_open; j++, m = fill->micro_batches[m].after) {
        double c = fill->costs->modes[fill->micro_batches[m].mode].c;
        double size = size_of(&pipeline->sizes, j) - c - fill->micro_batches[m].work;
        double room = least(pipeline->budget, size), left = room;
        int64_t tokens = fill->micro_batches[m].tokens;
        if (!top_up(fill, m, &left, &tokens, above, NONE, any_cost)) return 0;
        fill->micro_batches[m].tokens = tokens;
        pipeline->budget -= room - left;
        fill->micro_batches[m].work += room - left;
    }
    return 1;
}

static int add_new(Fill *fill, Pipeline *pipeline, int64_t above) {
    int64_t number = pipeline->sizes.number < fill->most ? pipeline->sizes.number : fill->most;
    while (fill->pool.left && pipeline->micro_batches < number) {
        double size = least(pipeline->budget, size_of(&pipeline->sizes, pipeline->micro_batches));
        int64_t chosen = 0, first = choose_first(fill, above, size, pipeline->together,
                                                 &chosen);
        if (first == NONE) break;
        const Mode *mode = &fill->costs->modes[chosen];
        double room = size - mode->c, left = room;
        int64_t tokens = mode->capacity;
        if (!reserve((void **)&fill->micro_batches, fill->micro_count, &fill->micro_room,
                     sizeof(MicroBatch)))
            return 0;
        int64_t m = fill->micro_count;
        fill->micro_batches[m] = (MicroBatch){0.0, 0, 0, NONE, NONE, NONE, chosen};
        if (!top_up(fill, m, &left, &tokens, above, first, pipeline->together > 1)) return 0;
        if (fill->micro_batches[m].entries == 0) break;
        fill->micro_batches[m].work = room - left;
        fill->micro_batches[m].tokens = tokens;
        append_micro(fill, pipeline, m);
        pipeline->budget -= room - left + mode->c;
    }
    return 1;
}

static int fill_pipeline(Fill *fill, Pipeline *pipeline, int64_t above) {
    return top_up_open(fill, pipeline, above, pipeline->micro_batches, 0) &&
           add_new(fill, pipeline, above);
}

/* bubbles.Bubbles.of. */
static double bubbles_of(const Costs *costs, int64_t micro_batches) {
    return costs->of_many + costs->of_few / most((double)micro_batches + costs->spread - 1, 1.0);
}

/* ramps.Ramps.spread: the sizes, and how much work they hold. */
static double spread(const Costs *costs, int64_t number, double time, double most_ms, double overhead,
                     Sizes *sizes) {
    int64_t more = number > costs->most_sizes ? number - costs->most_sizes : 0;
    int64_t kept = number - more, limited = 0;
    const double *shares = costs->shares + (kept - 1) * costs->most_sizes;
    double left = time, weight = costs->weights[kept - 1] + (double)more, largest = left / weight;
    for (; limited < kept && largest * shares[limited] > most_ms; limited++) {
        double equal = limited ? 1.0 : (double)(more + 1);
        left -= equal * most_ms;
        weight -= equal * shares[limited];
        largest = left / weight;
    }
    double work = (double)more * most(least(most_ms, largest) - overhead, 0.0);
    for (int64_t j = 0; j < kept; j++) {
        double room = least(most_ms, largest * shares[j]) - overhead;
        if (room <= 0) break;
        work += room;
    }
    *sizes = (Sizes){most_ms, largest, shares, number, kept};
    return work;
}

/* micro_batch_sizes.choose_sizes. */
static Sizes choose_sizes_of(const Costs *costs, double budget, double alone, double most_ms,
                             double light_c) {
    double best = -1.0;
    Sizes chosen = {most_ms, INFINITY, NULL, 1, 0}, sizes;
    for (int64_t v = 1; v <= MOST_COUNTED; v++) {
        double work = spread(costs, v, budget, most_ms, light_c, &sizes);
        if (work <= best || (v > 1 && size_of(&sizes, 0) < alone)) break;
        best = work;
        chosen = sizes;
    }
    return chosen;
}

/* micro_batch_sizes.idle_of. */
static double idle_of(const Costs *costs, int64_t number, int64_t micro_batches) {
    return number > 1 ? bubbles_of(costs, micro_batches) : (double)(costs->pp - 1);
}

/* micro_batch_sizes.choose_number. */
static int64_t choose_number(const Costs *costs, int64_t first, double budget, int64_t *micro_batches,
                             double *slowest) {
    double costs_ms[MOST_EQUAL];
    int64_t held = 0, chosen = 0;
    int64_t largest = costs->together ? costs->together : MOST_EQUAL;
    for (int64_t number = 1; number <= largest; number++) {
        double cost = INFINITY;
        for (int64_t m = 0; m < costs->mode_count; m++) {
            const Mode *mode = &costs->modes[m];
            if (costs->padded[first] <= mode->capacity / number)
                cost = least(cost, (double)number * mode->work[first] + mode->c);
        }
        cost *= ROUND;
        int64_t full = 0;
        double idle = number > 1 ? costs->of_many : (double)(costs->pp - 1);
        if (cost < INFINITY) full = (int64_t)least(budget / cost - idle, MOST_COUNTED);
        while (full > 0 && ((double)full + idle_of(costs, number, full)) * cost > budget) full--;
        if (full <= 0) break;
        double left = budget - ((double)full + bubbles_of(costs, full + 1)) * cost;
        int64_t rest = number - 1;
        while (rest > 0 && costs_ms[rest - 1] > left) rest--;
        costs_ms[number - 1] = cost;
        if (number * full + rest <= held || (costs->together && costs->together != number)) continue;
        held = number * full + rest;
        chosen = number;
        *micro_batches = full + (rest > 0);
        *slowest = cost;
    }
    return chosen == MOST_EQUAL ? 0 : chosen;
}

/* greedy._open. */
static void open_pipeline(Fill *fill, int64_t first, double target) {
    const Costs *costs = fill->costs;
    double alone = INFINITY;
    for (int64_t m = 0; m < costs->mode_count; m++) {
        const Mode *mode = &costs->modes[m];
        if (costs->padded[first] > mode->capacity) continue;
        alone = least(alone, mode->work[first] + mode->c);
    }
    double budget = target * ROUND;
    Pipeline *pipeline = &fill->pipelines[fill->opened++];
    *pipeline = (Pipeline){budget, budget, {INFINITY, INFINITY, NULL, ANY_NUMBER, 0}, 0, NONE, NONE, 1};
    if (costs->pp == 1) return;
    int64_t size = fill->pool.size, even = 1, limit = 1;
    int64_t middle = first + (size - first) / 2 < size - 1 ? first + (size - first) / 2 : size - 1;
    const Mode *full = &costs->modes[costs->preferred[middle * costs->mode_count]];
    int64_t length = fill->pool.lengths[first];
    if (full->capacity < length) length = full->capacity;
    double light_c = costs->modes[0].c;
    for (int64_t m = 1; m < costs->mode_count; m++) light_c = least(light_c, costs->modes[m].c);
    double token_work = (double)full->capacity * (full->a * (double)length + full->b);
    if (costs->most_sizes) {
        double most_ms = most(token_work + full->c, alone * ROUND);
        pipeline->sizes = choose_sizes_of(costs, budget, alone, most_ms, light_c);
        if (fill->pool.counts[first] > 1 && 1 < pipeline->sizes.number &&
            size_of(&pipeline->sizes, 0) < alone * NEAR)
            pipeline->sizes = choose_sizes_of(costs, budget, alone, alone * ROUND, light_c);
        return;
    }
    double best = -1.0, each = 0.0;
    if (fill->pool.lengths[first] <= costs->equal_up_to &&
        (limit = choose_number(costs, first, budget, &even, &each))) {
        pipeline->together = limit;
        pipeline->sizes.most_ms = each;
        pipeline->budget = budget - idle_of(costs, limit, even) * each;
        return;
    }
    even = limit = 1;
    for (int64_t v = 1; v <= MOST_COUNTED; v++) {
        double of_v = budget / ((double)v + bubbles_of(costs, v));
        if (v > 1 && of_v < alone) break;
        limit = v;
        double capacity = (double)v * least(of_v - light_c, token_work + (full->c - light_c));
        if (capacity <= best) break;
        best = capacity;
        even = v;
        each = of_v;
    }
    double left = budget - bubbles_of(costs, limit) * (alone * ROUND);
    double peaked = left - light_c * most(ceil(left / alone), ceil(left / (token_work + full->c)));
    int is_peaked = even == limit && peaked > best;
    pipeline->sizes.most_ms = is_peaked ? alone * ROUND : each;
    pipeline->budget = is_peaked ? left : (double)even * ((each - light_c) + light_c);
}

/* greedy.PythonFill.fill_class. */
static int fill_pipelines(Fill *fill, int64_t reach, int64_t forced_above, double target) {
    Pool *pool = &fill->pool;
    for (int64_t k = 0; k < fill->count; k++) {
        int64_t first = at_most(pool, reach, 0);
        if (first == pool->size || pool->lengths[first] <= forced_above) break;
        open_pipeline(fill, first, target);
        if (!fill_pipeline(fill, &fill->pipelines[k], forced_above)) return 0;
    }
    for (int64_t k = 0; k < fill->count; k++) {
        if (k == fill->opened) {
            int64_t first = at_most(pool, reach, 0);
            if (first == pool->size) break;
            open_pipeline(fill, first, target);
        }
        if (!fill_pipeline(fill, &fill->pipelines[k], 0)) return 0;
    }
    for (int64_t k = 0; fill->costs->mode_count > 1 && k < fill->opened && pool->left; k++)
        if (!top_up_open(fill, &fill->pipelines[k], 0, fill->pipelines[k].micro_batches, 1))
            return 0;
    return 1;
}

/* The cost of a micro-batch in the cheapest mode that holds it. */
static double cost_of(const Fill *fill, const MicroBatch *micro) {
    const Costs *costs = fill->costs;
    int64_t padded = 0;
    double cost = INFINITY;
    for (int64_t e = micro->first; e != NONE; e = fill->entries[e].after)
        padded += fill->entries[e].number * costs->padded[fill->entries[e].index];
    for (int64_t m = 0; m < costs->mode_count; m++) {
        const Mode *mode = &costs->modes[m];
        if (padded > mode->capacity) continue;
        double work = 0.0;
        for (int64_t e = micro->first; e != NONE; e = fill->entries[e].after)
            work += (double)fill->entries[e].number * mode->work[fill->entries[e].index];
        cost = least(cost, mode->c + work);
    }
    return cost;
}

/* greedy.estimate_ms of one pipeline. */
static double estimate_ms(const Fill *fill, const Pipeline *pipeline) {
    double total = 0.0, slowest = 0.0;
    for (int64_t m = pipeline->first; m != NONE; m = fill->micro_batches[m].after) {
        double cost = cost_of(fill, &fill->micro_batches[m]);
        total += cost;
        slowest = most(slowest, cost);
    }
    total += bubbles_of(fill->costs, pipeline->micro_batches) * slowest;
    return most(total, (double)fill->costs->pp * slowest);
}

/* The estimate, or with the sizes of ramps the limit. */
static double time_of(const Fill *fill, const Pipeline *pipeline) {
    if (fill->costs->most_sizes == 0) return estimate_ms(fill, pipeline);
    return pipeline->micro_batches ? pipeline->limit : 0.0;
}

/* Write every pipeline's number of micro-batches, and of each its number of entries and these. */
static PyObject *packed(const Fill *fill) {
    int64_t words = fill->count + fill->micro_count + 2 * fill->entry_count;
    if (words > PY_SSIZE_T_MAX / (int64_t)sizeof(int64_t)) return PyErr_NoMemory();
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words * (int64_t)sizeof(int64_t));
    if (bytes == NULL) return NULL;
    char *end = PyBytes_AsString(bytes);
#define WRITE(value)                                                                             \
    do {                                                                                         \
        int64_t word_ = (value);                                                                 \
        memcpy(end, &word_, sizeof word_);                                                       \
        end += sizeof word_;                                                                     \
    } while (0)
    for (int64_t k = 0; k < fill->count; k++) {
        if (k >= fill->opened) {
            WRITE(0);
            continue;
        }
        WRITE(fill->pipelines[k].micro_batches);
        for (int64_t m = fill->pipelines[k].first; m != NONE; m = fill->micro_batches[m].after) {
            WRITE(fill->micro_batches[m].entries);
            for (int64_t e = fill->micro_batches[m].first; e != NONE; e = fill->entries[e].after) {
                WRITE(fill->entries[e].index);
                WRITE(fill->entries[e].number);
            }
        }
    }
#undef WRITE
    return bytes;
}

static PyObject *times_ms(const Fill *fill) {
    PyObject *times = PyTuple_New(fill->count);
    for (int64_t k = 0; times != NULL && k < fill->count; k++) {
        PyObject *time =
            PyFloat_FromDouble(k < fill->opened ? time_of(fill, &fill->pipelines[k]) : 0.0);
        if (time == NULL)
            Py_CLEAR(times);
        else
            PyTuple_SetItem(times, k, time);
    }
    return times;
}

/* Check the counts and link over lengths of which none is left. */
static int take_sequences(Pool *pool) {
    pool->left = 0;
    for (int64_t i = 0; i < pool->size; i++) {
        int64_t count = pool->counts[i];
        if (count < 0 || count >= EXACT - pool->left) {
            PyErr_SetString(PyExc_ValueError, "counts must be 0 or more, together below 2**53");
            return 0;
        }
        pool->left += count;
        pool->next[i] = count ? i : i + 1;
    }
    pool->next[pool->size] = pool->size;
    return 1;
}

/* Whether a buffer has so many values of 8 bytes, aligned. */
static int has_values(const Py_buffer *buffer, int64_t values) {
    return buffer->len % (Py_ssize_t)sizeof(int64_t) == 0 &&
           (uintptr_t)buffer->buf % _Alignof(int64_t) == 0 &&
           buffer->len / (Py_ssize_t)sizeof(int64_t) == values;
}

/* Whether whole numbers are all from ``low`` to ``high``. */
static int in_range(const int64_t *values, int64_t number, int64_t low, int64_t high) {
    for (int64_t j = 0; j < number; j++)
        if (values[j] < low || values[j] > high) return 0;
    return 1;
}

/* Whether every index leads on, within the lengths. */
static int leads_on(const int64_t *from, int64_t size) {
    for (int64_t i = 0; i <= size; i++)
        if (from[i] < i || from[i] > size) return 0;
    return 1;
}

/* Point into the arrays, and check them; returns what is wrong, or NULL. */
static const char *read_costs(Costs *costs) {
    const Py_buffer *arrays = costs->arrays;
    int64_t n = arrays[LENGTHS].len / (Py_ssize_t)sizeof(int64_t);
    int64_t number = arrays[CAPACITIES].len / (Py_ssize_t)sizeof(int64_t);
    if (number < 1 || number > MOST_MODES || !has_values(&arrays[LENGTHS], n) ||
        !has_values(&arrays[PADDED], n) || !has_values(&arrays[WORK], number * n) ||
        !has_values(&arrays[PREFERRED], number * n) ||
        !has_values(&arrays[CHEAP], number * (n + 1)) ||
        !has_values(&arrays[HELD], number * (n + 1)) ||
        !has_values(&arrays[COEFFICIENTS], 3 * number) || !has_values(&arrays[CAPACITIES], number))
        return "arrays must be of 1 to 8 modes and of one size";
    costs->size = n;
    costs->mode_count = number;
    costs->lengths = arrays[LENGTHS].buf;
    costs->padded = arrays[PADDED].buf;
    costs->preferred = arrays[PREFERRED].buf;
    if (!(costs->of_many >= 0 && costs->of_few >= 0 && costs->spread >= 0) ||
        !isfinite(costs->of_many + costs->of_few + costs->spread))
        return "bubbles must be finite, 0 or more";
    int64_t most_sizes = arrays[WEIGHTS].len / (Py_ssize_t)sizeof(double);
    if (!has_values(&arrays[WEIGHTS], most_sizes) ||
        !has_values(&arrays[SHARES], most_sizes * most_sizes))
        return "sizes must be of one number";
    costs->most_sizes = most_sizes;
    costs->shares = arrays[SHARES].buf;
    costs->weights = arrays[WEIGHTS].buf;
    for (int64_t j = 0; j < most_sizes; j++)
        if (!(costs->weights[j] > 0) || !isfinite(costs->weights[j]))
            return "weights of sizes must be above 0";
    for (int64_t j = 0; j < most_sizes * most_sizes; j++)
        if (!(costs->shares[j] >= 0 && costs->shares[j] <= 1))
            return "sizes must be shares of the largest";
    if (costs->together < 0 || costs->together > MOST_EQUAL)
        return "sequences together must be 0 to 16";
    if (costs->pp < 1 || costs->pp >= EXACT) return "pp must be 1 or more, below 2**53";
    for (int64_t i = 0; i < n; i++)
        if (costs->lengths[i] < 1 || costs->lengths[i] >= EXACT ||
            (i && costs->lengths[i] >= costs->lengths[i - 1]))
            return "lengths must descend, from below 2**53 down to 1";
    if (!in_range(costs->padded, n, 1, EXACT) ||
        !in_range(costs->preferred, number * n, 0, number - 1))
        return "padded lengths and modes must be in range";
    for (int64_t m = 0; m < number; m++) {
        const double *abc = (const double *)arrays[COEFFICIENTS].buf + 3 * m;
        Mode *mode = &costs->modes[m];
        *mode = (Mode){abc[0], abc[1], abc[2], ((const int64_t *)arrays[CAPACITIES].buf)[m],
                       (const double *)arrays[WORK].buf + m * n,
                       (const int64_t *)arrays[CHEAP].buf + m * (n + 1),
                       (const int64_t *)arrays[HELD].buf + m * (n + 1)};
        if (!leads_on(mode->cheap_from, n) || !leads_on(mode->held_from, n))
            return "skips must lead on, within the lengths";
        if (mode->capacity < 0 || mode->capacity >= EXACT)
            return "capacities must be 0 or more, below 2**53";
        if (!(mode->a >= 0 && mode->b >= 0 && mode->c >= 0 && mode->a + mode->b > 0) ||
            !isfinite(mode->a + mode->b + mode->c))
            return "a, b and c must be finite; a + b above 0";
    }
    return NULL;
}

static void free_costs(PyObject *capsule) {
    Costs *costs = PyCapsule_GetPointer(capsule, COSTS);
    for (int j = 0; j < ARRAYS; j++) PyBuffer_Release(&costs->arrays[j]);
    PyMem_Free(costs);
}

PyDoc_STRVAR(make_costs_doc,
             "make_costs(lengths, padded, work, preferred, cheap_from, held_from, coefficients, "
             "capacities, pp, of_many, of_few, spread, equal_up_to, together, shares, weights)\n--\n\nCheck the arrays of "
             "fleet.ClassCosts, for fill_class.");

static PyObject *make_costs(PyObject *Py_UNUSED(module), PyObject *args) {
    Costs *costs = PyMem_Calloc(1, sizeof(Costs));
    if (costs == NULL) return PyErr_NoMemory();
    Py_buffer *a = costs->arrays;
    long long pp, equal_up_to, together;
    const char *wrong = NULL;
    PyObject *capsule = NULL;
    if (PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*LdddLLy*y*:make_costs", &a[LENGTHS], &a[PADDED], &a[WORK],
                         &a[PREFERRED], &a[CHEAP], &a[HELD], &a[COEFFICIENTS], &a[CAPACITIES],
                         &pp, &costs->of_many, &costs->of_few, &costs->spread, &equal_up_to,
                         &together, &a[SHARES], &a[WEIGHTS])) {
        costs->pp = pp;
        costs->equal_up_to = equal_up_to;
        costs->together = together;
        wrong = read_costs(costs);
        if (wrong != NULL)
            PyErr_SetString(PyExc_ValueError, wrong);
        else
            capsule = PyCapsule_New(costs, COSTS, free_costs);
        if (capsule != NULL) return capsule;
        for (int j = 0; j < ARRAYS; j++) PyBuffer_Release(&a[j]);
    }
    PyMem_Free(costs);
    return NULL;
}

/* Fill what has been checked; 0 with an exception set. end_fill frees the memory in either case. */
static int begin_fill(Fill *fill, int64_t reach, int64_t forced_above, double target) {
    fill->pool.next = PyMem_Malloc(((size_t)fill->pool.size + 1) * sizeof(int64_t));
    fill->pipelines = (uint64_t)fill->count < SIZE_MAX / sizeof(Pipeline)
                          ? PyMem_Malloc((size_t)(fill->count ? fill->count : 1) *
                                            sizeof(Pipeline))
                          : NULL;
    if (fill->pool.next == NULL || fill->pipelines == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    return take_sequences(&fill->pool) &&
           fill_pipelines(fill, reach, forced_above, target);
}

static void end_fill(Fill *fill) {
    PyMem_Free(fill->entries);
    PyMem_Free(fill->micro_batches);
    PyMem_Free(fill->pipelines);
    PyMem_Free(fill->pool.next);
}

static int64_t count_filled(const Fill *fill) {
    int64_t filled = 0;
    for (int64_t k = 0; k < fill->opened; k++) filled += fill->pipelines[k].micro_batches > 0;
    return filled;
}

/* Fill what has been checked, return the placement, and free the call's memory. */
static PyObject *run_fill(Fill *fill, int64_t reach, int64_t forced_above, double target) {
    PyObject *placement = NULL, *times = NULL, *result = NULL;
    if (begin_fill(fill, reach, forced_above, target)) placement = packed(fill);
    if (placement != NULL) times = times_ms(fill);
    if (times != NULL)
        result = Py_BuildValue("(OOLL)", placement, times, (long long)fill->pool.left,
                               (long long)count_filled(fill));
    Py_XDECREF(placement);
    Py_XDECREF(times);
    end_fill(fill);
    return result;
}

PyDoc_STRVAR(fill_class_doc,
             "fill_class(costs, counts, count, reach, forced_above, target_ms, "
             "most)\n--\n\nFill one class from counts (int64, changed in place) of "
             "unassigned sequences.\n\nReturns the placement, packed; the estimated time of each "
             "pipeline; what "
             "is left; and how many pipelines have sequences.");

static PyObject *fill_class(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer counts;
    PyObject *capsule;
    long long count, reach, forced_above, most_of_each;
    double target;
    Fill fill = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "Ow*LLLdL:fill_class", &capsule, &counts, &count, &reach,
                          &forced_above, &target, &most_of_each))
        return NULL;
    fill.costs = PyCapsule_GetPointer(capsule, COSTS);
    if (fill.costs == NULL) goto done;
    if (!has_values(&counts, fill.costs->size)) {
        PyErr_SetString(PyExc_ValueError, "counts must be an int64 array, one for each length");
        goto done;
    }
    if (count < 0 || most_of_each < 1 || !isfinite(target)) {
        PyErr_SetString(PyExc_ValueError, "count, most and times must be in range");
        goto done;
    }
    fill.count = count;
    fill.most = most_of_each;
    fill.pool.size = fill.costs->size;
    fill.pool.lengths = fill.costs->lengths;
    fill.pool.counts = counts.buf;
    result = run_fill(&fill, reach, forced_above, target);
done:
    PyBuffer_Release(&counts);
    return result;
}

/* What fills micro-steps: a class for each degree, of so many ranks a group, the largest first. */
typedef struct {
    const Costs **costs;
    int64_t *gpus, *reach, *counts, *trial;
    int64_t degrees, ranks, most, size;
} MicroSteps;

/* ClassCosts.longest_alone. */
static int64_t longest_alone(const Costs *costs, double target) {
    int64_t longest = 0;
    for (int64_t m = 0; m < costs->mode_count; m++) {
        const Mode *mode = &costs->modes[m];
        double work = target * ROUND / (double)costs->pp - mode->c;
        if (!(work > 0)) continue;
        double root = sqrt(mode->b * mode->b + 4 * mode->a * work);
        double limit = 2 * work / (mode->b + root) * ROUND;
        int64_t length = limit < (double)mode->capacity ? (int64_t)limit : mode->capacity;
        if (length > longest) longest = length;
    }
    return longest;
}

static Fill make_fill(const MicroSteps *steps, int64_t k, int64_t count, int64_t *counts) {
    Fill fill = {0};
    fill.costs = steps->costs[k];
    fill.count = count;
    fill.most = steps->most;
    fill.pool.size = steps->size;
    fill.pool.lengths = fill.costs->lengths;
    fill.pool.counts = counts;
    return fill;
}

/* MicroStepsFiller._number_needed; NONE with an exception set. */
static int64_t number_needed(MicroSteps *steps, int64_t k, int64_t number, int64_t above,
                             double target) {
    const int64_t *lengths = steps->costs[k]->lengths;
    for (int64_t i = 0; i < steps->size; i++)
        steps->trial[i] = lengths[i] > above ? steps->counts[i] : 0;
    Fill fill = make_fill(steps, k, number, steps->trial);
    int64_t needed = NONE;
    if (begin_fill(&fill, steps->reach[k], 0, target)) needed = count_filled(&fill);
    end_fill(&fill);
    return needed;
}

/* Fill the groups of a class: (k, placement, number); sets what is left, raises the slowest time. */
static PyObject *fill_groups(MicroSteps *steps, int64_t k, int64_t number, int64_t above,
                             double target, int64_t *left, double *slowest) {
    Fill fill = make_fill(steps, k, number, steps->counts);
    PyObject *placement = NULL, *result = NULL;
    if (begin_fill(&fill, steps->reach[k], above, target)) placement = packed(&fill);
    if (placement != NULL) {
        for (int64_t j = 0; j < fill.opened; j++)
            *slowest = most(*slowest, estimate_ms(&fill, &fill.pipelines[j]));
        *left = fill.pool.left;
        result = Py_BuildValue("(LNL)", (long long)k, placement, (long long)number);
    }
    end_fill(&fill);
    return result;
}

static void set_reach(MicroSteps *steps, int64_t *reach, double target) {
    steps->reach = reach;
    for (int64_t k = 0; k < steps->degrees; k++) reach[k] = longest_alone(steps->costs[k], target);
}

/* A micro-step while it is filled: its target, slowest time, free ranks and classes' groups. */
typedef struct {
    double target, slowest;
    int64_t free;
    PyObject *filled;
} MicroStep;

/* MicroStepsFiller._fill_degree; 0 with an exception set. */
static int fill_degree(MicroSteps *steps, MicroStep *step, int64_t k, int64_t longest, double share,
                       int64_t *left) {
    int64_t below = 0, number = step->free / steps->gpus[k];
    for (int64_t j = k + 1; j < steps->degrees; j++)
        if (steps->reach[j] > below) below = steps->reach[j];
    if (!number || steps->costs[0]->lengths[longest] <= below || steps->reach[k] <= 0) return 1;
    if (below) {
        number = number_needed(steps, k, number, below, step->target);
        if (number == NONE) return 0;
        number = (int64_t)ceil((double)number * share);
    }
    if (number == 0) return 1;
    PyObject *groups = fill_groups(steps, k, number, below, step->target, left, &step->slowest);
    int good = groups != NULL && PyList_Append(step->filled, groups) == 0;
    Py_XDECREF(groups);
    step->free -= number * steps->gpus[k];
    return good;
}

/* MicroStepsFiller.fill_micro_step: a list of its classes' groups, and its time. */
static PyObject *fill_one_step(MicroSteps *steps, int64_t longest, double target, int64_t *left) {
    if (!isfinite(target)) {
        PyErr_SetString(PyExc_ValueError, "times must be in range");
        return NULL;
    }
    MicroStep step = {target, 0.0, steps->ranks, PyList_New(0)};
    if (step.filled == NULL) return NULL;
    set_reach(steps, steps->reach, target);
    for (int64_t k = 0; k < steps->degrees && *left; k++) {
        while (!steps->counts[longest]) longest++;
        if (fill_degree(steps, &step, k, longest, 1.0, left)) continue;
        Py_DECREF(step.filled);
        return NULL;
    }
    return Py_BuildValue("(Nd)", step.filled, step.slowest);
}

/* MicroStepsFiller._fill_in_turn: a list of micro-steps; sets what is left. */
static PyObject *fill_in_turn(MicroSteps *steps, const double *targets, int64_t number,
                              const double *alone, int64_t *left) {
    PyObject *micro_steps = PyList_New(0);
    int64_t longest = 0;
    for (int64_t r = 0; micro_steps != NULL && r < number && *left; r++) {
        while (!steps->counts[longest]) longest++;
        PyObject *filled = fill_one_step(steps, longest, most(targets[r], alone[longest]), left);
        if (filled == NULL || PyList_Append(micro_steps, filled) < 0) Py_CLEAR(micro_steps);
        Py_XDECREF(filled);
    }
    return micro_steps;
}

/* Whether a class from ``k`` on takes so many tokens in one of two micro-steps. */
static int is_reached(const int64_t *reach, int64_t degrees, int64_t k, int64_t tokens) {
    for (int64_t j = k; j < degrees; j++)
        if (reach[j] >= tokens || reach[degrees + j] >= tokens) return 1;
    return 0;
}

/* TwoMicroSteps.fill_both: both in a list; ``shares``: of the first, by class. */
static PyObject *fill_at_once(MicroSteps *steps, const double *targets, const double *shares,
                              int64_t *left) {
    int64_t *reach = steps->reach, longest = 0;
    MicroStep both[2] = {{targets[0], 0.0, steps->ranks, PyList_New(0)},
                         {targets[1], 0.0, steps->ranks, PyList_New(0)}};
    int good = both[0].filled != NULL && both[1].filled != NULL;
    for (int r = 0; r < 2; r++) set_reach(steps, reach + r * steps->degrees, targets[r]);
    for (int64_t turn = 0; good && *left && turn < 2 * steps->degrees; turn++) {
        int64_t k = turn / 2, r = turn % 2;
        steps->reach = reach + r * steps->degrees;
        while (!steps->counts[longest]) longest++;
        if (!is_reached(reach, steps->degrees, k, steps->costs[0]->lengths[longest])) break;
        good = fill_degree(steps, &both[r], k, longest, r ? 1.0 : shares[k], left);
    }
    steps->reach = reach;
    if (good)
        return Py_BuildValue("[(Nd)(Nd)]", both[0].filled, both[0].slowest, both[1].filled,
                             both[1].slowest);
    Py_XDECREF(both[0].filled);
    Py_XDECREF(both[1].filled);
    return NULL;
}

/* Read the classes: a tuple of (costs, ranks of a group). 0 with an exception set. */
static int read_degrees(MicroSteps *steps, PyObject *classes) {
    steps->degrees = PyTuple_Size(classes);
    size_t room = (size_t)(steps->degrees ? steps->degrees : 1) * sizeof(int64_t);
    steps->costs = PyMem_Malloc((room / sizeof(int64_t)) * sizeof(Costs *));
    steps->gpus = PyMem_Malloc(room);
    steps->reach = PyMem_Malloc(2 * room);
    steps->trial = PyMem_Malloc((size_t)(steps->size ? steps->size : 1) * sizeof(int64_t));
    if (!steps->costs || !steps->gpus || !steps->reach || !steps->trial) {
        PyErr_NoMemory();
        return 0;
    }
    for (int64_t k = 0; k < steps->degrees; k++) {
        PyObject *capsule;
        long long gpus;
        if (!PyArg_ParseTuple(PyTuple_GetItem(classes, k), "OL:fill_micro_steps", &capsule, &gpus))
            return 0;
        steps->costs[k] = PyCapsule_GetPointer(capsule, COSTS);
        if (steps->costs[k] == NULL) return 0;
        steps->gpus[k] = gpus;
        if (gpus < 1 || steps->costs[k]->size != steps->size) {
            PyErr_SetString(PyExc_ValueError, "classes must have ranks, and costs of all lengths");
            return 0;
        }
    }
    if (steps->degrees) return 1;
    PyErr_SetString(PyExc_ValueError, "no classes");
    return 0;
}

PyDoc_STRVAR(fill_micro_steps_doc,
             "fill_micro_steps(classes, ranks, counts, targets_ms, alone_ms, most, shares)\n--\n\n"
             "Fill micro-steps in turn from counts (int64, changed in place) of unassigned "
             "sequences.\n\nWith shares by class, two at once. Returns of each its classes' (index, "
             "placement, groups) and its time (ms), and what is left.");

static PyObject *fill_micro_steps(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer counts, targets, alone, shares;
    PyObject *classes, *micro_steps = NULL, *result = NULL;
    long long ranks, most_of_each;
    MicroSteps steps = {0};
    if (!PyArg_ParseTuple(args, "O!Lw*y*y*Ly*:fill_micro_steps", &PyTuple_Type, &classes, &ranks,
                          &counts, &targets, &alone, &most_of_each, &shares))
        return NULL;
    int64_t number = targets.len / (Py_ssize_t)sizeof(double), left = 0;
    int64_t shared = shares.len / (Py_ssize_t)sizeof(double);
    steps.size = counts.len / (Py_ssize_t)sizeof(int64_t);
    steps.counts = counts.buf;
    steps.ranks = ranks;
    steps.most = most_of_each;
    if (!has_values(&counts, steps.size) || !has_values(&targets, number) ||
        !has_values(&alone, steps.size) || !has_values(&shares, shared) || ranks < 0 ||
        most_of_each < 1) {
        PyErr_SetString(PyExc_ValueError, "arrays must be of 8 bytes a value and of one size");
    } else if (read_degrees(&steps, classes)) {
        const double *until = targets.buf, *of_first = shares.buf;
        int finite = !shared || (shared == steps.degrees && number == 2);
        for (int64_t k = 0; k < shared; k++)
            finite = finite && of_first[k] >= 0 && of_first[k] <= 1;
        for (int64_t r = 0; r < number; r++) finite = finite && isfinite(until[r]);
        for (int64_t i = 0; i < steps.size; i++) left += steps.counts[i];
        if (!finite || !in_range(steps.counts, steps.size, 0, EXACT))
            PyErr_SetString(PyExc_ValueError, "targets, shares and counts must be in range");
        else if (shared)
            micro_steps = fill_at_once(&steps, until, of_first, &left);
        else
            micro_steps = fill_in_turn(&steps, until, number, alone.buf, &left);
    }
    if (micro_steps != NULL) result = Py_BuildValue("(NL)", micro_steps, (long long)left);
    PyMem_Free(steps.costs);
    PyMem_Free(steps.gpus);
    PyMem_Free(steps.reach);
    PyMem_Free(steps.trial);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&targets);
    PyBuffer_Release(&alone);
    PyBuffer_Release(&shares);
    return result;
}

static PyObject *read_micro_batch(Reader *reader) {
    int64_t entries = read_word(reader, 2);
    if (entries == NONE) return NULL;
    PyObject *micro = PyList_New(entries);
    for (int64_t e = 0; micro != NULL && e < entries; e++) {
        int64_t index = read_word(reader, 0);
        int64_t number = read_word(reader, 0);
        PyObject *entry = PyTuple_New(2);
        PyObject *first = PyLong_FromLongLong(index), *second = PyLong_FromLongLong(number);
        if (index == NONE || number == NONE || entry == NULL || first == NULL || second == NULL) {
            Py_XDECREF(entry);
            Py_XDECREF(first);
            Py_XDECREF(second);
            Py_CLEAR(micro);
        } else {
            PyTuple_SetItem(entry, 0, first);
            PyTuple_SetItem(entry, 1, second);
            PyList_SetItem(micro, e, entry);
        }
    }
    return micro;
}

static PyObject *read_pipeline(Reader *reader) {
    int64_t micro_batches = read_word(reader, 1);
    if (micro_batches == NONE) return NULL;
    PyObject *pipeline = PyTuple_New(micro_batches);
    for (int64_t m = 0; pipeline != NULL && m < micro_batches; m++) {
        PyObject *micro = read_micro_batch(reader);
        if (micro == NULL)
            Py_CLEAR(pipeline);
        else
            PyTuple_SetItem(pipeline, m, micro);
    }
    return pipeline;
}

PyDoc_STRVAR(unpack_doc,
             "unpack(placement, count)\n--\n\nUnpack a placement of fill_class on count pipelines: "
             "a tuple of pipelines, each of micro-batches, each a list of (index, number).");

static PyObject *unpack(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer bytes;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(args, "y*n:unpack", &bytes, &count)) return NULL;
    Reader reader = {bytes.buf, bytes.len / (Py_ssize_t)sizeof(int64_t)};
    PyObject *pipelines = NULL;
    if (count < 0 || count > reader.words)
        PyErr_SetString(PyExc_ValueError, "not a packed placement");
    else
        pipelines = PyTuple_New(count);
    for (Py_ssize_t k = 0; pipelines != NULL && k < count; k++) {
        PyObject *pipeline = read_pipeline(&reader);
        if (pipeline == NULL)
            Py_CLEAR(pipelines);
        else
            PyTuple_SetItem(pipelines, k, pipeline);
    }
    PyBuffer_Release(&bytes);
    return pipelines;
}

static PyMethodDef methods[] = {
    {"assign_sized", assign_sized, METH_VARARGS, assign_sized_doc},
    {"choose_sizes", choose_sizes, METH_VARARGS, choose_sizes_doc},
    {"exchange", exchange, METH_VARARGS, exchange_doc},
    {"exchange_sized", exchange_sized, METH_VARARGS, exchange_sized_doc},
    {"fill_class", fill_class, METH_VARARGS, fill_class_doc},
    {"fill_micro_steps", fill_micro_steps, METH_VARARGS, fill_micro_steps_doc},
    {"make_costs", make_costs, METH_VARARGS, make_costs_doc},
    {"unpack", unpack, METH_VARARGS, unpack_doc},
    {NULL, NULL, 0, NULL},
};

static int add_source(PyObject *module) {
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_source}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "fill_kernel",
    .m_doc = "The fill of one class of pipelines, compiled.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_fill_kernel(void) { return PyModuleDef_Init(&definition); }
