/* The fill of one class of pipelines, compiled: the same operations on the same numbers, in the same
 * order, as class_fill.py, which says what they mean. Every float has the same bits as there, so that
 * a plan does not depend on which of the two made it; tests compare them.
 *
 * Nothing is kept between calls: the unassigned sequences are the caller's array of counts. Memory is
 * taken through Python, so that tracemalloc counts it.
 *
 * SOURCE is the digest of this file without the line that defines it. fill_kernel's caller compares
 * it with the file beside it: a kernel that was built from another text is not used.
 */
#define SOURCE "626994ca0c494bbf"

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "floats are kept with more bits than Python's here: the fill stays in Python"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math changes results: the fill stays in Python"
#endif

#define NONE (-1)
#define EXACT ((int64_t)1 << 53) /* whole numbers below it are exact as doubles */

#define MOST_COUNTED 10000 /* class_fill.MOST_COUNTED */
#define MOST_MODES 8       /* recomputation modes of a class */

static const double ROUND = 1.0 + 1e-12;

typedef struct {
    int64_t pp, capacity, unit, count;
    double a, b, c;
} Class;

/* A recomputation mode, with what each length costs in it: mode_fill.ModeTable. */
typedef struct {
    double a, b, c;
    int64_t capacity;
    const double *work;
    const int64_t *cheap_from, *held_from;
} Mode;

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

/* ``work``: without c where the class has one mode, else its cost, c included. */
typedef struct {
    double work;
    int64_t tokens, entries, first, last, after, mode;
} MicroBatch;

typedef struct {
    double budget, cap;
    int64_t micro_batches, first, last;
} Pipeline;

/* One call's state: grows by need, freed at its end. */
typedef struct {
    Class class;
    Pool pool;
    Mode *modes;
    int64_t mode_count;
    const int64_t *padded, *preferred;
    Entry *entries;
    MicroBatch *micro_batches;
    Pipeline *pipelines;
    int64_t entry_count, entry_room, micro_count, micro_room, opened;
} Fill;

static double least(double first, double second) { return second < first ? second : first; }

static double most(double first, double second) { return second > first ? second : first; }

static double work_of(const Class *class, int64_t length) {
    return (double)length * (class->a * (double)length + class->b);
}

/* Make room for one more element; 0 with an exception set where there is no memory. */
static int reserve(void **array, int64_t used, int64_t *room, size_t size) {
    if (used < *room) return 1;
    int64_t wanted = *room ? 2 * *room : 64;
    void *larger = NULL;
    if ((size_t)wanted <= SIZE_MAX / size) larger = PyMem_RawRealloc(*array, (size_t)wanted * size);
    if (larger == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    *array = larger;
    *room = wanted;
    return 1;
}

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

/* SequencePool.top_up into micro-batch ``m``: updates the work and the tokens that are left. */
static int top_up(Fill *fill, int64_t m, double *work, int64_t *tokens, int64_t above) {
    const Class *class = &fill->class;
    Pool *pool = &fill->pool;
    double four_a = 4 * class->a, b_squared = class->b * class->b;
    int64_t i = 0;
    while (*work > 0) {
        double limit = 2 * *work / (class->b + sqrt(b_squared + four_a * *work));
        i = at_most(pool, limit <= (double)*tokens ? (int64_t)limit : *tokens, i);
        if (i == pool->size) break;
        int64_t length = pool->lengths[i];
        if (length <= above) break;
        double cost = work_of(class, length);
        int64_t padded = (length + class->unit - 1) / class->unit * class->unit;
        int64_t n = how_many(pool->counts[i], *work, cost, *tokens, padded);
        *work -= (double)n * cost;
        *tokens -= n * padded;
        if (!add_entry(fill, m, i, n)) return 0;
    }
    return 1;
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

/* mode_fill.top_up; ``first``: the length that comes first, NONE without one. */
static int top_up_mode(Fill *fill, int64_t m, double *work, int64_t *tokens, int64_t above,
                       int64_t first, int any_cost) {
    const Mode *mode = &fill->modes[fill->micro_batches[m].mode];
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
        int64_t padded = fill->padded[i];
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

/* mode_fill.choose_first: the index, and the mode; NONE without one. */
static int64_t choose_first(Fill *fill, double room_ms, int64_t above, int64_t *chosen) {
    Pool *pool = &fill->pool;
    double reach[MOST_MODES], longest = 0.0;
    for (int64_t m = 0; m < fill->mode_count; m++) {
        const Mode *mode = &fill->modes[m];
        double room = room_ms - mode->c;
        reach[m] = 0.0;
        if (room > 0) {
            double limit =
                2 * room / (mode->b + sqrt(mode->b * mode->b + 4 * mode->a * room));
            reach[m] = least(limit, (double)mode->capacity);
        }
        longest = most(longest, reach[m]);
    }
    int64_t i = at_most(pool, (int64_t)longest, 0);
    if (i == pool->size || pool->lengths[i] <= above) return NONE;
    for (int64_t rank = 0; rank < fill->mode_count; rank++) {
        int64_t m = fill->preferred[i * fill->mode_count + rank];
        if ((double)pool->lengths[i] <= reach[m] && fill->padded[i] <= fill->modes[m].capacity) {
            *chosen = m;
            return i;
        }
    }
    return NONE;
}

static int top_up_open(Fill *fill, Pipeline *pipeline, int64_t above, int64_t already_open,
                       int any_cost) {
    int64_t m = pipeline->first;
    for (int64_t j = 0; j < already_open; j++, m = fill->micro_batches[m].after) {
        double room = least(pipeline->budget, pipeline->cap - fill->micro_batches[m].work);
        double left = room;
        int64_t tokens = fill->micro_batches[m].tokens;
        if (fill->mode_count ? !top_up_mode(fill, m, &left, &tokens, above, NONE, any_cost)
                             : !top_up(fill, m, &left, &tokens, above))
            return 0;
        fill->micro_batches[m].tokens = tokens;
        pipeline->budget -= room - left;
        fill->micro_batches[m].work += room - left;
    }
    return 1;
}

static int add_new(Fill *fill, Pipeline *pipeline, int64_t above) {
    while (fill->pool.left) {
        double room = least(pipeline->budget - fill->class.c, pipeline->cap), left = room;
        int64_t tokens = fill->class.capacity;
        if (!reserve((void **)&fill->micro_batches, fill->micro_count, &fill->micro_room,
                     sizeof(MicroBatch)))
            return 0;
        int64_t m = fill->micro_count;
        fill->micro_batches[m] = (MicroBatch){0.0, 0, 0, NONE, NONE, NONE, 0};
        if (!top_up(fill, m, &left, &tokens, above)) return 0;
        if (fill->micro_batches[m].entries == 0) break;
        fill->micro_batches[m].work = room - left;
        fill->micro_batches[m].tokens = tokens;
        append_micro(fill, pipeline, m);
        pipeline->budget -= room - left + fill->class.c;
    }
    return 1;
}

/* mode_fill._ModePipeline._add. */
static int add_new_mode(Fill *fill, Pipeline *pipeline, int64_t above) {
    while (fill->pool.left) {
        int64_t chosen = 0;
        int64_t first = choose_first(fill, least(pipeline->budget, pipeline->cap), above, &chosen);
        if (first == NONE) break;
        const Mode *mode = &fill->modes[chosen];
        double room = least(pipeline->budget, pipeline->cap) - mode->c, left = room;
        int64_t tokens = mode->capacity;
        if (!reserve((void **)&fill->micro_batches, fill->micro_count, &fill->micro_room,
                     sizeof(MicroBatch)))
            return 0;
        int64_t m = fill->micro_count;
        fill->micro_batches[m] = (MicroBatch){0.0, 0, 0, NONE, NONE, NONE, chosen};
        if (!top_up_mode(fill, m, &left, &tokens, above, first, 0)) return 0;
        if (fill->micro_batches[m].entries == 0) break;
        fill->micro_batches[m].work = mode->c + room - left;
        fill->micro_batches[m].tokens = tokens;
        append_micro(fill, pipeline, m);
        pipeline->budget -= mode->c + room - left;
    }
    return 1;
}

static int add_any(Fill *fill, Pipeline *pipeline, int64_t above) {
    return fill->mode_count ? add_new_mode(fill, pipeline, above) : add_new(fill, pipeline, above);
}

static int fill_pipeline(Fill *fill, Pipeline *pipeline, int64_t above, int new_first) {
    int64_t already_open = pipeline->micro_batches;
    if (new_first)
        return add_any(fill, pipeline, above) &&
               top_up_open(fill, pipeline, above, already_open, 0);
    return top_up_open(fill, pipeline, above, already_open, 0) && add_any(fill, pipeline, above);
}

/* class_fill.open_pipeline. */
static int open_pipeline(Fill *fill, int64_t longest, double target, double ceiling) {
    const Class *class = &fill->class;
    double work = work_of(class, longest), pp = (double)class->pp;
    double budget = least(most(target, pp * (work + class->c)), ceiling) * ROUND;
    Pipeline *pipeline = &fill->pipelines[fill->opened++];
    *pipeline = (Pipeline){budget, INFINITY, 0, NONE, NONE};
    if (class->pp == 1) return 1;
    int64_t bubbles = class->pp - 1;
    double token_work =
        (double)class->capacity * (class->a * (double)longest + class->b);
    if (work + class->c == 0.0) {
        PyErr_SetString(PyExc_ZeroDivisionError, "a sequence that takes no time");
        return 0;
    }
    double by_work = least(budget / (work + class->c), (double)(MOST_COUNTED + bubbles));
    int64_t fitting = (int64_t)most(by_work, 0.0) - bubbles;
    if (fitting < 1) fitting = 1;
    double best = -1.0;
    int64_t even = 1;
    for (int64_t v = 1; v <= fitting; v++) {
        double capacity =
            (double)v * least(budget / (double)(v + bubbles) - class->c, token_work);
        if (capacity <= best) break;
        best = capacity;
        even = v;
    }
    double left = budget - (double)bubbles * (work * ROUND + class->c);
    double peaked = left - class->c * most(ceil(left / (work + class->c)),
                                           ceil(left / (token_work + class->c)));
    if (even == fitting && peaked > best) {
        pipeline->budget = left;
        pipeline->cap = work * ROUND;
        return 1;
    }
    double even_work = budget / (double)(even + bubbles) - class->c;
    pipeline->budget = (double)even * (even_work + class->c);
    pipeline->cap = even_work;
    return 1;
}

/* mode_fill._full_ms. */
static double full_ms(const Fill *fill, int64_t first) {
    int64_t middle = first + (fill->pool.size - first) / 2;
    if (middle > fill->pool.size - 1) middle = fill->pool.size - 1;
    const Mode *mode = &fill->modes[fill->preferred[middle * fill->mode_count]];
    int64_t length = fill->padded[first] < mode->capacity ? fill->padded[first] : mode->capacity;
    return mode->c + (double)mode->capacity * (mode->a * (double)length + mode->b);
}

/* mode_fill._open. */
static int open_with_modes(Fill *fill, int64_t first, double target, double ceiling) {
    double alone = INFINITY, pp = (double)fill->class.pp;
    for (int64_t m = 0; m < fill->mode_count; m++)
        if (fill->padded[first] <= fill->modes[m].capacity)
            alone = least(alone, fill->modes[m].work[first] + fill->modes[m].c);
    double budget = least(most(target, pp * alone), ceiling) * ROUND;
    Pipeline *pipeline = &fill->pipelines[fill->opened++];
    *pipeline = (Pipeline){budget, INFINITY, 0, NONE, NONE};
    if (fill->class.pp == 1) return 1;
    if (alone == 0.0) {
        PyErr_SetString(PyExc_ZeroDivisionError, "a sequence that takes no time");
        return 0;
    }
    int64_t bubbles = fill->class.pp - 1, even = 1;
    double full = full_ms(fill, first), light_c = fill->modes[0].c, best = -1.0;
    double by_time = least(budget / alone, (double)(MOST_COUNTED + bubbles));
    int64_t fitting = (int64_t)most(by_time, 0.0) - bubbles;
    if (fitting < 1) fitting = 1;
    for (int64_t v = 1; v <= fitting; v++) {
        double capacity = (double)v * (least(budget / (double)(v + bubbles), full) - light_c);
        if (capacity <= best) break;
        best = capacity;
        even = v;
    }
    double left = budget - (double)bubbles * alone * ROUND;
    double peaked = left - light_c * most(ceil(left / alone), ceil(left / full));
    if (even == fitting && peaked > best) {
        pipeline->budget = left;
        pipeline->cap = alone * ROUND;
        return 1;
    }
    pipeline->cap = budget / (double)(even + bubbles);
    pipeline->budget = (double)even * pipeline->cap;
    return 1;
}

static int open_any(Fill *fill, int64_t first, double target, double ceiling) {
    if (fill->mode_count) return open_with_modes(fill, first, target, ceiling);
    return open_pipeline(fill, fill->pool.lengths[first], target, ceiling);
}

/* class_fill.fill_class and mode_fill.fill_class_modes. */
static int fill_pipelines(Fill *fill, int64_t reach, int64_t forced_above, double target,
                          double ceiling, int new_first) {
    Pool *pool = &fill->pool;
    for (int64_t k = 0; k < fill->class.count; k++) {
        int64_t first = at_most(pool, reach, 0);
        if (first == pool->size || pool->lengths[first] <= forced_above) break;
        if (!open_any(fill, first, target, ceiling)) return 0;
        if (!fill_pipeline(fill, &fill->pipelines[k], forced_above, 0)) return 0;
    }
    for (int64_t k = 0; k < fill->class.count; k++) {
        if (k == fill->opened) {
            int64_t first = at_most(pool, reach, 0);
            if (first == pool->size) break;
            if (!open_any(fill, first, target, ceiling)) return 0;
        }
        if (!fill_pipeline(fill, &fill->pipelines[k], 0, new_first)) return 0;
    }
    for (int64_t k = 0; fill->mode_count && k < fill->opened && pool->left; k++)
        if (!top_up_open(fill, &fill->pipelines[k], 0, fill->pipelines[k].micro_batches, 1))
            return 0;
    return 1;
}

/* The cost of a micro-batch in the cheapest mode that holds it: fleet._form_s_of_modes. */
static double cost_of_modes(const Fill *fill, const MicroBatch *micro) {
    int64_t padded = 0;
    double cost = INFINITY;
    for (int64_t e = micro->first; e != NONE; e = fill->entries[e].after)
        padded += fill->entries[e].number * fill->padded[fill->entries[e].index];
    for (int64_t m = 0; m < fill->mode_count; m++) {
        const Mode *mode = &fill->modes[m];
        if (padded > mode->capacity) continue;
        double work = 0.0;
        for (int64_t e = micro->first; e != NONE; e = fill->entries[e].after) {
            double length = (double)fill->pool.lengths[fill->entries[e].index];
            work += (double)fill->entries[e].number * (length * (mode->a * length + mode->b));
        }
        cost = least(cost, mode->c + work);
    }
    return cost;
}

/* fleet.form_s of one pipeline. */
static double form_s(const Fill *fill, const Pipeline *pipeline) {
    double total = 0.0, slowest = 0.0;
    if (pipeline->micro_batches == 0) return 0.0;
    for (int64_t m = pipeline->first; m != NONE; m = fill->micro_batches[m].after) {
        double work = 0.0;
        for (int64_t e = fill->micro_batches[m].first;
             e != NONE && !fill->mode_count; e = fill->entries[e].after)
            work += (double)fill->entries[e].number *
                    work_of(&fill->class, fill->pool.lengths[fill->entries[e].index]);
        double cost = fill->mode_count ? cost_of_modes(fill, &fill->micro_batches[m])
                                       : fill->class.c + work;
        total += cost;
        slowest = most(slowest, cost);
    }
    return total + (double)(fill->class.pp - 1) * slowest;
}

/* Write every pipeline's number of micro-batches, and of each its number of entries and these. */
static PyObject *packed(const Fill *fill) {
    int64_t words = fill->class.count + fill->micro_count + 2 * fill->entry_count;
    if (words > PY_SSIZE_T_MAX / (int64_t)sizeof(int64_t)) return PyErr_NoMemory();
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, words * (int64_t)sizeof(int64_t));
    if (bytes == NULL) return NULL;
    char *end = PyBytes_AS_STRING(bytes);
#define WRITE(value)                                                                             \
    do {                                                                                         \
        int64_t word_ = (value);                                                                 \
        memcpy(end, &word_, sizeof word_);                                                       \
        end += sizeof word_;                                                                     \
    } while (0)
    for (int64_t k = 0; k < fill->class.count; k++) {
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
    PyObject *times = PyTuple_New(fill->class.count);
    for (int64_t k = 0; times != NULL && k < fill->class.count; k++) {
        PyObject *time =
            PyFloat_FromDouble(k < fill->opened ? form_s(fill, &fill->pipelines[k]) : 0.0);
        if (time == NULL)
            Py_CLEAR(times);
        else
            PyTuple_SET_ITEM(times, k, time);
    }
    return times;
}

/* Check the sequences and link over those of which none is left. */
static int take_sequences(Pool *pool) {
    pool->left = 0;
    for (int64_t i = 0; i < pool->size; i++) {
        int64_t length = pool->lengths[i], count = pool->counts[i];
        if (length < 1 || length >= EXACT || (i && length >= pool->lengths[i - 1])) {
            PyErr_SetString(PyExc_ValueError, "lengths must descend, from below 2**53 down to 1");
            return 0;
        }
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

static int check_class(const Class *class, double target, double ceiling) {
    if (class->pp < 1 || class->pp >= EXACT || class->unit < 1 || class->unit >= EXACT ||
        class->capacity < 0 || class->capacity >= EXACT || class->count < 0) {
        PyErr_SetString(PyExc_ValueError, "pp, unit, capacity and count must be whole, in range");
        return 0;
    }
    if (!(class->a >= 0 && class->b >= 0 && class->c >= 0 && class->a + class->b > 0) ||
        !isfinite(class->a + class->b + class->c) || !isfinite(target) || !isfinite(ceiling)) {
        PyErr_SetString(PyExc_ValueError, "a, b, c and times must be finite; a + b above 0");
        return 0;
    }
    return 1;
}

static int is_int64(const Py_buffer *buffer) {
    return buffer->len % (Py_ssize_t)sizeof(int64_t) == 0 &&
           (uintptr_t)buffer->buf % _Alignof(int64_t) == 0;
}

/* Fill what has been checked, return the placement, and free the call's memory. */
static PyObject *run_fill(Fill *fill, int64_t reach, int64_t forced_above, double target,
                          double ceiling, int new_first) {
    PyObject *placement = NULL, *times = NULL, *result = NULL;
    int64_t count = fill->class.count;
    fill->pool.next = PyMem_RawMalloc(((size_t)fill->pool.size + 1) * sizeof(int64_t));
    fill->pipelines = (uint64_t)count < SIZE_MAX / sizeof(Pipeline)
                          ? PyMem_RawMalloc((size_t)(count ? count : 1) * sizeof(Pipeline))
                          : NULL;
    if (fill->pool.next == NULL || fill->pipelines == NULL)
        PyErr_NoMemory();
    else if (take_sequences(&fill->pool) &&
             fill_pipelines(fill, reach, forced_above, target, ceiling, new_first))
        placement = packed(fill);
    if (placement != NULL) times = times_ms(fill);
    if (times != NULL)
        result = Py_BuildValue("(OOL)", placement, times, (long long)fill->pool.left);
    Py_XDECREF(placement);
    Py_XDECREF(times);
    PyMem_RawFree(fill->entries);
    PyMem_RawFree(fill->micro_batches);
    PyMem_RawFree(fill->pipelines);
    PyMem_RawFree(fill->pool.next);
    return result;
}

PyDoc_STRVAR(fill_class_doc,
             "fill_class(lengths, counts, pp, a, b, c, capacity, unit, count, reach, forced_above, "
             "target_ms, ceiling_ms, new_first)\n--\n\nFill one class from lengths (int64, "
             "descending) of which counts (int64, changed in place) are unassigned.\n\n"
             "Returns the placement, packed; form S of each pipeline; and what is left.");

static PyObject *fill_class(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer lengths, counts;
    long long pp, capacity, unit, count, reach, forced_above;
    double target, ceiling;
    int new_first;
    Fill fill = {0};
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*w*LdddLLLLLddp:fill_class", &lengths, &counts, &pp,
                          &fill.class.a, &fill.class.b, &fill.class.c, &capacity, &unit, &count,
                          &reach, &forced_above, &target, &ceiling, &new_first))
        return NULL;
    fill.class.pp = pp;
    fill.class.capacity = capacity;
    fill.class.unit = unit;
    fill.class.count = count;
    if (lengths.len != counts.len || !is_int64(&lengths) || !is_int64(&counts)) {
        PyErr_SetString(PyExc_ValueError, "lengths and counts must be int64 arrays of one size");
        goto done;
    }
    if (!check_class(&fill.class, target, ceiling)) goto done;
    fill.pool.size = lengths.len / (Py_ssize_t)sizeof(int64_t);
    fill.pool.lengths = lengths.buf;
    fill.pool.counts = counts.buf;
    result = run_fill(&fill, reach, forced_above, target, ceiling, new_first);
done:
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&counts);
    return result;
}

/* Whether a buffer has so many values of 8 bytes, aligned. */
static int has_values(const Py_buffer *buffer, int64_t values) {
    return is_int64(buffer) && buffer->len / (Py_ssize_t)sizeof(int64_t) == values;
}

/* Whether whole numbers are all from ``low`` to ``high``. */
static int in_range(const int64_t *values, int64_t number, int64_t low, int64_t high) {
    for (int64_t j = 0; j < number; j++)
        if (values[j] < low || values[j] > high) return 0;
    return 1;
}

PyDoc_STRVAR(fill_modes_doc,
             "fill_modes(lengths, counts, padded, work, preferred, cheap_from, held_from, "
             "coefficients, capacities, pp, unit, count, reach, forced_above, target_ms, "
             "ceiling_ms, new_first)\n--\n\nFill one class whose micro-batches have recomputation "
             "modes; the arrays are those of mode_fill.ModeTable.\n\nReturns as fill_class.");

static PyObject *fill_modes(PyObject *Py_UNUSED(module), PyObject *args) {
    enum { LENGTHS, COUNTS, PADDED, WORK, PREFERRED, CHEAP, HELD, COEFFICIENTS, CAPACITIES, ARRAYS };
    Py_buffer arrays[ARRAYS];
    long long pp, unit, count, reach, forced_above;
    double target, ceiling;
    int new_first;
    Fill fill = {0};
    Mode modes[MOST_MODES];
    PyObject *result = NULL;
    if (!PyArg_ParseTuple(args, "y*w*y*y*y*y*y*y*y*LLLLLddp:fill_modes", &arrays[LENGTHS],
                          &arrays[COUNTS], &arrays[PADDED], &arrays[WORK], &arrays[PREFERRED],
                          &arrays[CHEAP], &arrays[HELD], &arrays[COEFFICIENTS],
                          &arrays[CAPACITIES], &pp, &unit, &count, &reach, &forced_above, &target,
                          &ceiling, &new_first))
        return NULL;
    int64_t n = arrays[LENGTHS].len / (Py_ssize_t)sizeof(int64_t);
    int64_t number = arrays[CAPACITIES].len / (Py_ssize_t)sizeof(int64_t);
    if (number < 1 || number > MOST_MODES || !has_values(&arrays[LENGTHS], n) ||
        !has_values(&arrays[COUNTS], n) || !has_values(&arrays[PADDED], n) ||
        !has_values(&arrays[WORK], number * n) || !has_values(&arrays[PREFERRED], number * n) ||
        !has_values(&arrays[CHEAP], number * (n + 1)) ||
        !has_values(&arrays[HELD], number * (n + 1)) ||
        !has_values(&arrays[COEFFICIENTS], 3 * number) ||
        !has_values(&arrays[CAPACITIES], number)) {
        PyErr_SetString(PyExc_ValueError, "arrays must be of 1 to 8 modes and of one size");
        goto done;
    }
    fill.padded = arrays[PADDED].buf;
    fill.preferred = arrays[PREFERRED].buf;
    if (!in_range(fill.padded, n, 1, EXACT) || !in_range(fill.preferred, number * n, 0, number - 1)) {
        PyErr_SetString(PyExc_ValueError, "padded lengths and modes must be in range");
        goto done;
    }
    for (int64_t m = 0; m < number; m++) {
        const double *abc = (const double *)arrays[COEFFICIENTS].buf + 3 * m;
        modes[m] = (Mode){abc[0], abc[1], abc[2], ((const int64_t *)arrays[CAPACITIES].buf)[m],
                          (const double *)arrays[WORK].buf + m * n,
                          (const int64_t *)arrays[CHEAP].buf + m * (n + 1),
                          (const int64_t *)arrays[HELD].buf + m * (n + 1)};
        for (int64_t i = 0; i <= n; i++)
            if (modes[m].cheap_from[i] < i || modes[m].cheap_from[i] > n ||
                modes[m].held_from[i] < i || modes[m].held_from[i] > n) {
                PyErr_SetString(PyExc_ValueError, "skips must lead on, within the lengths");
                goto done;
            }
        fill.class = (Class){pp, modes[m].capacity, unit, count, abc[0], abc[1], abc[2]};
        if (!check_class(&fill.class, target, ceiling)) goto done;
    }
    fill.modes = modes;
    fill.mode_count = number;
    fill.pool.size = n;
    fill.pool.lengths = arrays[LENGTHS].buf;
    fill.pool.counts = arrays[COUNTS].buf;
    result = run_fill(&fill, reach, forced_above, target, ceiling, new_first);
done:
    for (int j = 0; j < ARRAYS; j++) PyBuffer_Release(&arrays[j]);
    return result;
}

/* What is left of a packed placement. */
typedef struct {
    const char *at;
    Py_ssize_t words;
} Reader;

/* The next word; a count of further words of ``each`` when above 0. NONE with an exception set. */
static int64_t read_word(Reader *reader, int64_t each) {
    int64_t word;
    if (reader->words > 0) {
        memcpy(&word, reader->at, sizeof word);
        reader->at += sizeof word;
        reader->words--;
        if (word >= 0 && (each == 0 || word <= reader->words / each)) return word;
    }
    PyErr_SetString(PyExc_ValueError, "not a packed placement");
    return NONE;
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
            PyTuple_SET_ITEM(entry, 0, first);
            PyTuple_SET_ITEM(entry, 1, second);
            PyList_SET_ITEM(micro, e, entry);
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
            PyTuple_SET_ITEM(pipeline, m, micro);
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
            PyTuple_SET_ITEM(pipelines, k, pipeline);
    }
    PyBuffer_Release(&bytes);
    return pipelines;
}

static PyMethodDef methods[] = {
    {"fill_class", fill_class, METH_VARARGS, fill_class_doc},
    {"fill_modes", fill_modes, METH_VARARGS, fill_modes_doc},
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
