/* Exchanges of sequences between micro-batches, compiled: the same operations on the same numbers, in
 * the same order, as exchange.py, which explains them. Every float has the same bits as there; tests
 * compare them.
 */
#include "fill_kernel.h"

/* exchange._MicroBatch; ``sequences``: indices of lengths. */
typedef struct {
    int64_t *sequences, count, room, tokens;
    double work[MOST_MODES], cost;
} MicroBatch;

/* exchange._Pipeline. The place after the last micro-batch is an empty one, as a draw may open it. */
typedef struct {
    const Costs *costs;
    MicroBatch *micro_batches;
    int64_t count, room;
    double bubbles, total, time;
} Pipeline;

/* Tokens, work and cost of a micro-batch after an exchange. */
typedef struct {
    int64_t tokens;
    double work[MOST_MODES], cost;
} Weight;

typedef struct {
    Pipeline *pipelines;
    int64_t count;
    uint64_t state;
    double from_slowest, moves, swaps, shorter;
} Exchanges;

static double draw_from(uint64_t *of) {
    uint64_t state = *of;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    *of = state;
    return (double)((state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1p-53;
}

static double draw(Exchanges *all) { return draw_from(&all->state); }

static int64_t draw_below(Exchanges *all, int64_t number) {
    return (int64_t)(draw(all) * (double)number);
}

/* _Pipeline.weigh; 0 if no mode holds it. */
static int weigh(const Costs *costs, const MicroBatch *micro, const int64_t *outgoing, int64_t out,
                 const int64_t *incoming, int64_t in, Weight *weight) {
    int64_t modes = costs->mode_count;
    weight->tokens = micro->tokens;
    for (int64_t k = 0; k < in; k++) weight->tokens += costs->padded[incoming[k]];
    for (int64_t k = 0; k < out; k++) weight->tokens -= costs->padded[outgoing[k]];
    if (weight->tokens > costs->modes[modes - 1].capacity) return 0;
    if (micro->count + in == out) {
        memset(weight, 0, sizeof *weight);
        return 1;
    }
    weight->cost = INFINITY;
    for (int64_t m = 0; m < modes; m++) {
        const Mode *mode = &costs->modes[m];
        double work = micro->work[m];
        for (int64_t k = 0; k < out; k++) work -= mode->work[outgoing[k]];
        for (int64_t k = 0; k < in; k++) work += mode->work[incoming[k]];
        weight->work[m] = work;
        if (weight->tokens <= mode->capacity && work + mode->c < weight->cost)
            weight->cost = work + mode->c;
    }
    return 1;
}

/* _Pipeline.compute_time_ms after micro-batch ``i`` costs this, and ``j`` too unless it is NONE. */
static double time_after(const Pipeline *pipeline, int64_t i, double of_i, int64_t j, double of_j) {
    const MicroBatch *micro_batches = pipeline->micro_batches;
    double total = pipeline->total, slowest = 0.0;
    if (i != NONE) total = total - micro_batches[i].cost + of_i;
    if (j != NONE) total = total - micro_batches[j].cost + of_j;
    for (int64_t m = 0; m <= pipeline->count; m++) {
        double cost = m == i ? of_i : m == j ? of_j : micro_batches[m].cost;
        if (cost > slowest) slowest = cost;
    }
    return total + pipeline->bubbles * slowest;
}

static void update_time(Pipeline *pipeline) {
    pipeline->total = 0.0;
    for (int64_t m = 0; m < pipeline->count; m++) pipeline->total += pipeline->micro_batches[m].cost;
    pipeline->time = time_after(pipeline, NONE, 0.0, NONE, 0.0);
}

/* Make the place after the last micro-batch an empty one; 0 where there is no memory. */
static int open_place(Pipeline *pipeline) {
    int64_t before = pipeline->room;
    if (!reserve((void **)&pipeline->micro_batches, pipeline->count, &pipeline->room,
                 sizeof(MicroBatch)))
        return 0;
    if (pipeline->room > before)
        memset(pipeline->micro_batches + before, 0,
               (size_t)(pipeline->room - before) * sizeof(MicroBatch));
    return 1;
}

static int add_sequence(MicroBatch *micro, int64_t index) {
    if (!reserve((void **)&micro->sequences, micro->count, &micro->room, sizeof(int64_t))) return 0;
    micro->sequences[micro->count++] = index;
    return 1;
}

/* exchange._replace, in place; an empty micro-batch is left to drop_empty. */
static int replace(MicroBatch *micro, const int64_t *outgoing, int64_t out, const int64_t *incoming,
                   int64_t in, const Weight *weight) {
    for (int64_t k = 0; k < out; k++) {
        int64_t at = 0;
        while (micro->sequences[at] != outgoing[k]) at++;
        micro->count--;
        memmove(micro->sequences + at, micro->sequences + at + 1,
                (size_t)(micro->count - at) * sizeof(int64_t));
    }
    for (int64_t k = 0; k < in; k++)
        if (!add_sequence(micro, incoming[k])) return 0;
    micro->tokens = weight->tokens;
    memcpy(micro->work, weight->work, sizeof micro->work);
    micro->cost = weight->cost;
    return 1;
}

/* Count a micro-batch that was opened, drop one that became empty, and update the time. */
static int settle(Pipeline *pipeline) {
    if (pipeline->micro_batches[pipeline->count].count) {
        pipeline->count++;
        if (!open_place(pipeline)) return 0;
    }
    for (int64_t m = 0; m < pipeline->count;) {
        if (pipeline->micro_batches[m].count) {
            m++;
            continue;
        }
        PyMem_Free(pipeline->micro_batches[m].sequences);
        pipeline->count--;
        memmove(pipeline->micro_batches + m, pipeline->micro_batches + m + 1,
                (size_t)(pipeline->count - m) * sizeof(MicroBatch));
        memset(&pipeline->micro_batches[pipeline->count], 0, sizeof(MicroBatch));
    }
    update_time(pipeline);
    return 1;
}

/* exchange._draw_returned: how many. */
static int64_t draw_returned(Exchanges *all, const MicroBatch *micro, int64_t *returned) {
    double kind = draw(all);
    if (kind < all->moves || micro->count == 0) return 0;
    int64_t one = draw_below(all, micro->count);
    returned[0] = micro->sequences[one];
    if (kind < all->swaps || micro->count == 1) return 1;
    returned[1] = micro->sequences[(one + 1 + draw_below(all, micro->count - 1)) % micro->count];
    return 2;
}

/* exchange._exchange: whether it was made, NONE where there is no memory. */
static int try_exchange(Exchanges *all, Pipeline *first, Pipeline *second) {
    int64_t i = draw_below(all, first->count), j = draw_below(all, second->count + 1);
    if (first == second && i == j) return 0;
    MicroBatch *giving = &first->micro_batches[i], *taking = &second->micro_batches[j];
    int64_t given[1] = {giving->sequences[draw_below(all, giving->count)]}, returned[2];
    int64_t back = draw_returned(all, taking, returned);
    double limit = first->time * all->shorter;
    Weight of_giving, of_taking;
    if (!weigh(first->costs, giving, given, 1, returned, back, &of_giving)) return 0;
    if (first != second && time_after(first, i, of_giving.cost, NONE, 0.0) >= limit) return 0;
    if (!weigh(second->costs, taking, returned, back, given, 1, &of_taking)) return 0;
    double time = first == second ? time_after(first, i, of_giving.cost, j, of_taking.cost)
                                  : time_after(second, j, of_taking.cost, NONE, 0.0);
    if (time >= limit) return 0;
    if (!replace(giving, given, 1, returned, back, &of_giving) ||
        !replace(taking, returned, back, given, 1, &of_taking) || !settle(first))
        return NONE;
    if (first != second && !settle(second)) return NONE;
    return 1;
}

static Pipeline *find_slowest(Exchanges *all) {
    Pipeline *slowest = all->pipelines;
    for (int64_t k = 1; k < all->count; k++)
        if (all->pipelines[k].time > slowest->time) slowest = &all->pipelines[k];
    return slowest;
}

/* exchange._improve: whether an exchange was made, NONE where there is no memory. */
static int improve(Exchanges *all, double lower, int64_t drawn, int64_t most_fruitless) {
    int made = 0;
    int64_t fruitless = 0;
    Pipeline *slowest = find_slowest(all);
    for (int64_t n = 0; n < drawn; n++) {
        if (slowest->time <= lower || fruitless == most_fruitless) break;
        Pipeline *first = draw(all) < all->from_slowest
                              ? slowest
                              : &all->pipelines[draw_below(all, all->count)];
        Pipeline *second = &all->pipelines[draw_below(all, all->count)];
        fruitless++;
        int done = first->count ? try_exchange(all, first, second) : 0;
        if (done == NONE) return NONE;
        if (done) {
            fruitless = 0;
            made = 1;
            slowest = find_slowest(all);
        }
    }
    return made;
}

/* Read one micro-batch into the open place of a pipeline; 0 with an exception set. */
static int read_micro(Reader *reader, Pipeline *pipeline) {
    int64_t entries = read_word(reader, 2);
    if (entries == NONE || !open_place(pipeline)) return 0;
    const Costs *costs = pipeline->costs;
    MicroBatch *micro = &pipeline->micro_batches[pipeline->count];
    for (int64_t e = 0; e < entries; e++) {
        int64_t index = read_word(reader, 0), number = read_word(reader, 0);
        if (index == NONE || number == NONE) return 0;
        if (index >= costs->size) {
            PyErr_SetString(PyExc_ValueError, "not a placement of these lengths");
            return 0;
        }
        for (int64_t n = 0; n < number; n++)
            if (!add_sequence(micro, index)) return 0;
    }
    Weight weight;
    MicroBatch empty = {0};
    if (micro->count == 0 ||
        !weigh(costs, &empty, NULL, 0, micro->sequences, micro->count, &weight)) {
        PyErr_SetString(PyExc_ValueError, "a micro-batch is empty, or no mode holds it");
        return 0;
    }
    pipeline->count++;
    return replace(micro, NULL, 0, NULL, 0, &weight);
}

/* Read the pipelines of one class: (costs, placement, count). 0 with an exception set. */
static int read_class(Exchanges *all, PyObject *of_class) {
    PyObject *capsule;
    Py_buffer bytes;
    Py_ssize_t count;
    if (!PyArg_ParseTuple(of_class, "Oy*n:exchange", &capsule, &bytes, &count)) return 0;
    Reader reader = {bytes.buf, bytes.len / (Py_ssize_t)sizeof(int64_t)};
    const Costs *costs = PyCapsule_GetPointer(capsule, COSTS);
    int good = costs != NULL;
    if (good && (count < 0 || count > reader.words)) {
        PyErr_SetString(PyExc_ValueError, "not a packed placement");
        good = 0;
    }
    Pipeline *larger = NULL;
    if (good)
        larger = PyMem_Realloc(all->pipelines, (size_t)(all->count + count + 1) * sizeof(Pipeline));
    if (good && larger == NULL) PyErr_NoMemory();
    good = larger != NULL;
    if (good) all->pipelines = larger;
    for (Py_ssize_t k = 0; good && k < count; k++) {
        Pipeline *pipeline = &all->pipelines[all->count++];
        *pipeline = (Pipeline){costs, NULL, 0, 0, (double)(costs->pp - 1), 0.0, 0.0};
        int64_t micro_batches = read_word(&reader, 1);
        good = micro_batches != NONE;
        for (int64_t m = 0; good && m < micro_batches; m++) good = read_micro(&reader, pipeline);
        good = good && open_place(pipeline);
        if (good) update_time(pipeline);
    }
    PyBuffer_Release(&bytes);
    return good;
}

static int compare(const void *one, const void *other) {
    int64_t a = *(const int64_t *)one, b = *(const int64_t *)other;
    return (a > b) - (a < b);
}

/* Write pipelines from ``first`` on as a fill does, entries by ascending index. */
static PyObject *pack(Pipeline *first, int64_t count) {
    int64_t words = count;
    for (int64_t k = 0; k < count; k++)
        for (int64_t m = 0; m < first[k].count; m++) words += 1 + 2 * first[k].micro_batches[m].count;
    int64_t *all = PyMem_Malloc((size_t)(words ? words : 1) * sizeof(int64_t)), *end = all;
    if (all == NULL) return PyErr_NoMemory();
    for (int64_t k = 0; k < count; k++) {
        *end++ = first[k].count;
        for (int64_t m = 0; m < first[k].count; m++) {
            MicroBatch *micro = &first[k].micro_batches[m];
            qsort(micro->sequences, (size_t)micro->count, sizeof(int64_t), compare);
            int64_t *entries = end++;
            *entries = 0;
            for (int64_t n = 0; n < micro->count; n++) {
                if (n == 0 || micro->sequences[n] != micro->sequences[n - 1]) {
                    *end++ = micro->sequences[n];
                    *end++ = 0;
                    ++*entries;
                }
                ++end[-1];
            }
        }
    }
    PyObject *bytes =
        PyBytes_FromStringAndSize((const char *)all, (end - all) * (Py_ssize_t)sizeof(int64_t));
    PyMem_Free(all);
    return bytes;
}

static PyObject *pack_classes(Exchanges *all, PyObject *classes) {
    Py_ssize_t number = PyTuple_Size(classes);
    PyObject *packed = PyTuple_New(number);
    Pipeline *first = all->pipelines;
    for (Py_ssize_t k = 0; packed != NULL && k < number; k++) {
        int64_t count = PyLong_AsLongLong(PyTuple_GetItem(PyTuple_GetItem(classes, k), 2));
        PyObject *of_class = pack(first, count);
        if (of_class == NULL)
            Py_CLEAR(packed);
        else
            PyTuple_SetItem(packed, k, of_class);
        first += count;
    }
    return packed;
}

const char exchange_doc[] =
    "exchange(classes, lower_ms, drawn, fruitless, from_slowest, moves, swaps, shorter)\n--\n\n"
    "Exchange sequences between the micro-batches of classes, each (costs, placement, count).\n\n"
    "Returns the placements, packed; None if no exchange was made.";

PyObject *exchange(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *classes, *result = NULL;
    double lower;
    long long drawn, fruitless;
    Exchanges all = {.state = UINT64_C(0x9E3779B97F4A7C15)};
    if (!PyArg_ParseTuple(args, "O!dLLdddd:exchange", &PyTuple_Type, &classes, &lower, &drawn,
                          &fruitless, &all.from_slowest, &all.moves, &all.swaps, &all.shorter))
        return NULL;
    int good = 1;
    for (Py_ssize_t k = 0; good && k < PyTuple_Size(classes); k++)
        good = read_class(&all, PyTuple_GetItem(classes, k));
    if (good && all.count == 0) {
        PyErr_SetString(PyExc_ValueError, "no pipelines");
        good = 0;
    }
    int made = good ? improve(&all, lower, drawn, fruitless) : NONE;
    if (made == 1)
        result = pack_classes(&all, classes);
    else if (made == 0)
        result = Py_NewRef(Py_None);
    for (int64_t k = 0; k < all.count; k++) {
        for (int64_t m = 0; m < all.pipelines[k].room; m++)
            PyMem_Free(all.pipelines[k].micro_batches[m].sequences);
        PyMem_Free(all.pipelines[k].micro_batches);
    }
    PyMem_Free(all.pipelines);
    return result;
}

/* exchange_sized.SizedBatches, its fields in order, and what exchanges need beside it. */
enum { IN_PADDED, IN_SQUARES, IN_OWNER, IN_PIPELINE, IN_SIZES, IN_TOKENS, IN_A, IN_WEIGHT, IN_ROW,
       IN_GPUS, IN_LARGEST, IN_FIXED, IN_WORK, IN_SETTLED, SIZED_ARRAYS };

typedef struct {
    const double *padded, *squares, *sizes, *a, *weight, *gpus, *largest, *fixed;
    const int64_t *pipeline, *row;
    double *tokens, *work, *excess;
    int64_t *owner, *settled, *by_owner, *counts, *firsts, *begins;
    int64_t sequences, places, pipelines, classes, drawn, block;
    double limit, above_all, least_excess, least_gain;
    uint64_t state;
} Sized;

/* Up to two sequences each way, and the two places. */
typedef struct {
    int64_t given, second, taken, other, source, target;
} SizedExchange;

static double above(double value, double limit) { return value - limit > 0.0 ? value - limit : 0.0; }

static double weigh_tokens(const Sized *b, double tokens, int64_t place) {
    double largest = b->largest[b->pipeline[place]];
    return b->weight[place] *
           (above(tokens, b->sizes[place]) + b->above_all * above(tokens, largest));
}

static double weigh_work(const Sized *b, double work, int64_t pipeline) {
    return b->gpus[pipeline] * above(work, b->limit - b->fixed[pipeline]);
}

static void update_excess(Sized *b, int64_t pipeline) {
    double excess = 0.0;
    for (int64_t place = b->begins[pipeline]; place < b->begins[pipeline + 1]; place++)
        excess += weigh_tokens(b, b->tokens[place], place);
    excess += weigh_work(b, b->work[pipeline], pipeline);
    b->excess[pipeline] = excess > b->least_excess ? excess : 0.0;
}

static double value_of(const double *values, int64_t i) { return i == NONE ? 0.0 : values[i]; }

static double add_two(const double *values, int64_t one, int64_t two) {
    return value_of(values, one) + value_of(values, two);
}

static int64_t draw_index(Sized *b, int64_t number) {
    return (int64_t)(draw_from(&b->state) * (double)number);
}

static int64_t draw_second(Sized *b, int64_t first, int64_t place) {
    if (draw_from(&b->state) < 0.5) return NONE;
    int64_t second = b->by_owner[b->firsts[place] + draw_index(b, b->counts[place])];
    return second == first ? NONE : second;
}

/* exchange_sized._Exchanges._weigh. */
static double weigh_exchange(const Sized *b, int64_t top, const SizedExchange *x) {
    int64_t pipeline = b->pipeline[x->target];
    const double *here = b->padded + b->row[top] * b->sequences;
    const double *there = b->padded + b->row[pipeline] * b->sequences;
    if (value_of(here, x->taken) > b->largest[top] || value_of(here, x->other) > b->largest[top] ||
        value_of(there, x->given) > b->largest[pipeline] ||
        value_of(there, x->second) > b->largest[pipeline])
        return INFINITY;
    double into = add_two(here, x->taken, x->other) - add_two(here, x->given, x->second);
    double out = add_two(there, x->given, x->second) - add_two(there, x->taken, x->other);
    double more = add_two(b->squares, x->taken, x->other) - add_two(b->squares, x->given, x->second);
    double change = weigh_tokens(b, b->tokens[x->source] + into, x->source);
    change -= weigh_tokens(b, b->tokens[x->source], x->source);
    change += weigh_tokens(b, b->tokens[x->target] + out, x->target);
    change -= weigh_tokens(b, b->tokens[x->target], x->target);
    double target_ms = b->a[x->target] * more;
    double top_ms = b->work[top] + b->a[x->source] * more;
    if (pipeline == top) top_ms -= target_ms;
    change += weigh_work(b, top_ms, top);
    change -= weigh_work(b, b->work[top], top);
    if (pipeline != top) {
        change += weigh_work(b, b->work[pipeline] - target_ms, pipeline);
        change -= weigh_work(b, b->work[pipeline], pipeline);
    }
    return change;
}

static void sort_by_owner(Sized *b) {
    memset(b->counts, 0, (size_t)b->places * sizeof(int64_t));
    for (int64_t i = 0; i < b->sequences; i++) b->counts[b->owner[i]]++;
    for (int64_t place = 0, first = 0; place < b->places; place++) {
        b->firsts[place] = first;
        first += b->counts[place];
        b->counts[place] = 0;
    }
    for (int64_t i = 0; i < b->sequences; i++) {
        int64_t place = b->owner[i];
        b->by_owner[b->firsts[place] + b->counts[place]++] = i;
    }
}

static void make_exchange(Sized *b, int64_t top, const SizedExchange *x) {
    int64_t pipeline = b->pipeline[x->target];
    const double *here = b->padded + b->row[top] * b->sequences;
    const double *there = b->padded + b->row[pipeline] * b->sequences;
    double more = add_two(b->squares, x->taken, x->other) - add_two(b->squares, x->given, x->second);
    b->tokens[x->source] += add_two(here, x->taken, x->other) - add_two(here, x->given, x->second);
    b->tokens[x->target] += add_two(there, x->given, x->second) - add_two(there, x->taken, x->other);
    b->owner[x->given] = x->target;
    if (x->second != NONE) b->owner[x->second] = x->target;
    if (x->taken != NONE) b->owner[x->taken] = x->source;
    if (x->other != NONE) b->owner[x->other] = x->source;
    b->work[top] += b->a[x->source] * more;
    b->work[pipeline] -= b->a[x->target] * more;
}

/* exchange_sized._Exchanges._exchange: the other pipeline, NONE if no exchange helps. */
static int64_t exchange_with(Sized *b, int64_t top) {
    sort_by_owner(b);
    int64_t begin = b->firsts[b->begins[top]], number = 0;
    for (int64_t place = b->begins[top]; place < b->begins[top + 1]; place++)
        number += b->counts[place];
    if (!number) return NONE;
    SizedExchange best = {NONE, NONE, NONE, NONE, NONE, NONE};
    double least = -b->least_gain;
    for (int64_t drawn = 1; drawn <= b->drawn; drawn++) {
        SizedExchange x = {.given = b->by_owner[begin + draw_index(b, number)], .other = NONE};
        x.source = b->owner[x.given];
        x.second = draw_second(b, x.given, x.source);
        x.taken = draw_index(b, b->sequences + b->places);
        x.target = x.taken - b->sequences;
        if (x.target < 0) {
            x.target = b->owner[x.taken];
            x.other = draw_second(b, x.taken, x.target);
        } else {
            x.taken = NONE;
        }
        if (x.source != x.target) {
            double change = weigh_exchange(b, top, &x);
            if (change < least) {
                best = x;
                least = change;
            }
        }
        if (best.given != NONE && drawn % b->block == 0) break;
    }
    if (best.given == NONE) return NONE;
    make_exchange(b, top, &best);
    return b->pipeline[best.target];
}

/* exchange_sized._Exchanges.run: the pipeline that is stuck, or NONE; sets how many were made. */
static int64_t run_sized(Sized *b, int64_t most_made, int64_t *made) {
    for (int64_t pipeline = 0; pipeline < b->pipelines; pipeline++) update_excess(b, pipeline);
    for (*made = 0; *made < most_made; ++*made) {
        int64_t top = NONE;
        for (int64_t pipeline = 0; pipeline < b->pipelines; pipeline++)
            if (!b->settled[pipeline] && b->excess[pipeline] > (top == NONE ? 0.0 : b->excess[top]))
                top = pipeline;
        if (top == NONE) return NONE;
        int64_t changed = exchange_with(b, top);
        if (changed == NONE) return top;
        b->settled[top] = b->settled[changed] = 0;
        update_excess(b, top);
        update_excess(b, changed);
    }
    return NONE;
}

/* Point to the arrays and check their sizes and indices; 0 with an exception set. */
static int read_sized(Sized *b, const Py_buffer *arrays) {
    const int64_t width = (int64_t)sizeof(int64_t);
    b->sequences = arrays[IN_OWNER].len / width;
    b->places = arrays[IN_PIPELINE].len / width;
    b->pipelines = arrays[IN_ROW].len / width;
    int good = b->sequences > 0 && b->places > 0 && b->pipelines > 0 && b->drawn > 0 && b->block > 0;
    for (int k = 0; good && k < SIZED_ARRAYS; k++) {
        int64_t values = k == IN_SQUARES || k == IN_OWNER  ? b->sequences
                         : k == IN_PADDED               ? arrays[k].len / width
                         : k >= IN_PIPELINE && k <= IN_WEIGHT ? b->places
                                                        : b->pipelines;
        good = arrays[k].len == values * width;
    }
    if (good) {
        b->classes = arrays[IN_PADDED].len / width / b->sequences;
        good = arrays[IN_PADDED].len == b->classes * b->sequences * width;
    }
    b->padded = arrays[IN_PADDED].buf, b->squares = arrays[IN_SQUARES].buf, b->owner = arrays[IN_OWNER].buf;
    b->pipeline = arrays[IN_PIPELINE].buf, b->sizes = arrays[IN_SIZES].buf, b->tokens = arrays[IN_TOKENS].buf;
    b->a = arrays[IN_A].buf, b->weight = arrays[IN_WEIGHT].buf, b->row = arrays[IN_ROW].buf;
    b->gpus = arrays[IN_GPUS].buf, b->largest = arrays[IN_LARGEST].buf, b->fixed = arrays[IN_FIXED].buf;
    b->work = arrays[IN_WORK].buf, b->settled = arrays[IN_SETTLED].buf;
    for (int64_t i = 0; good && i < b->sequences; i++)
        good = b->owner[i] >= 0 && b->owner[i] < b->places;
    for (int64_t k = 0; good && k < b->places; k++)
        good = b->pipeline[k] >= (k ? b->pipeline[k - 1] : 0) && b->pipeline[k] < b->pipelines;
    for (int64_t p = 0; good && p < b->pipelines; p++)
        good = b->row[p] >= 0 && b->row[p] < b->classes;
    if (!good) PyErr_SetString(PyExc_ValueError, "not micro-batches of sizes");
    return good;
}

const char exchange_sized_doc[] =
    "exchange_sized(arrays, limits, numbers)\n--\n\n"
    "Exchange sequences between micro-batches of sizes; changes owners, tokens, work and settled.\n\n"
    "Returns the pipeline that no exchange helps, else -1, how many were made, and the draws' state.";

PyObject *exchange_sized(PyObject *Py_UNUSED(module), PyObject *args) {
    Sized b = {0};
    Py_buffer arrays[SIZED_ARRAYS];
    PyObject *fields, *result = NULL;
    long long drawn, block, most_made;
    unsigned long long state;
    if (!PyArg_ParseTuple(args, "O!(dddd)(LLLK):exchange_sized", &PyTuple_Type, &fields, &b.limit,
                          &b.above_all, &b.least_excess, &b.least_gain, &drawn, &block, &most_made,
                          &state))
        return NULL;
    b.drawn = drawn, b.block = block, b.state = state;
    int read = 0;
    if (PyTuple_Size(fields) != SIZED_ARRAYS) {
        PyErr_SetString(PyExc_ValueError, "not micro-batches of sizes");
        return NULL;
    }
    while (read < SIZED_ARRAYS &&
           PyObject_GetBuffer(PyTuple_GetItem(fields, read), &arrays[read], PyBUF_WRITABLE) == 0)
        read++;
    if (read == SIZED_ARRAYS && read_sized(&b, arrays)) {
        size_t words = (size_t)(b.sequences + 2 * b.places + 2 * b.pipelines + 1);
        int64_t *room = PyMem_Calloc(words, sizeof(int64_t));
        if (room == NULL) {
            PyErr_NoMemory();
        } else {
            b.by_owner = room;
            b.counts = b.by_owner + b.sequences;
            b.firsts = b.counts + b.places;
            b.begins = b.firsts + b.places;
            b.excess = (double *)(b.begins + b.pipelines + 1);
            for (int64_t k = 0; k < b.places; k++) b.begins[b.pipeline[k] + 1]++;
            for (int64_t p = 0; p < b.pipelines; p++) b.begins[p + 1] += b.begins[p];
            int64_t made = 0, stuck = run_sized(&b, most_made, &made);
            result = Py_BuildValue("(LLK)", (long long)stuck, (long long)made,
                                   (unsigned long long)b.state);
            PyMem_Free(room);
        }
    }
    for (int k = 0; k < read; k++) PyBuffer_Release(&arrays[k]);
    return result;
}
