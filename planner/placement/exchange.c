/* Exchanges of sequences between micro-batches, compiled: the same operations on the same numbers, in
 * the same order, as exchange.py, which explains them. Every float has the same bits as there; tests
 * compare them.
 */
#include "fill_kernel.h"

/* exchange._MicroBatch; ``sequences``: indices of lengths. */
typedef struct {
    int64_t *sequences, count, room, tokens;
    double work[MOST_MODES], cost, share;
} MicroBatch;

/* exchange._Pipeline. The place after the last micro-batch is an empty one, as a draw may open it.
 * ``shares``: forward's, by mode. */
typedef struct {
    const Costs *costs;
    MicroBatch *micro_batches;
    int64_t count, room;
    double total, time, shares[MOST_MODES];
} Pipeline;

/* Tokens, work, cost and forward's share of a micro-batch after an exchange. */
typedef struct {
    int64_t tokens;
    double work[MOST_MODES], cost, share;
} Weight;

/* ``scratch``: of a simulation, room for its micro-batches and passes. */
typedef struct {
    Pipeline *pipelines;
    int64_t count;
    uint64_t state;
    double from_slowest, within, moves, swaps, places, shorter;
    double *scratch;
    int64_t room;
} Exchanges;

static double draw(Exchanges *all) { return draw_from(&all->state); }

static int64_t draw_below(Exchanges *all, int64_t number) {
    return (int64_t)(draw(all) * (double)number);
}

/* _Pipeline.weigh; 0 if no mode holds it. */
static int weigh(const Pipeline *pipeline, const MicroBatch *micro, const int64_t *outgoing,
                 int64_t out, const int64_t *incoming, int64_t in, Weight *weight) {
    const Costs *costs = pipeline->costs;
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
        if (weight->tokens <= mode->capacity && work + mode->c < weight->cost) {
            weight->cost = work + mode->c;
            weight->share = pipeline->shares[m];
        }
    }
    return 1;
}

/* Reserve what a simulation of the pipeline with two more micro-batches needs; 0 without memory. */
static int make_scratch(Exchanges *all, const Pipeline *pipeline) {
    int64_t stages = pipeline->costs->pp, most = pipeline->count + 2;
    int64_t needed = 2 * most + stages * (2 * most + 2);
    if (needed <= all->room) return 1;
    double *larger = PyMem_Realloc(all->scratch, (size_t)needed * sizeof(double));
    if (larger == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    all->scratch = larger;
    all->room = needed;
    return 1;
}

/* one_f_one_b.simulate_ms of the first ``count`` costs and shares in the scratch. */
static double simulate(const Exchanges *all, int64_t stages, int64_t most, int64_t count) {
    double *costs = all->scratch, *shares = costs + most, *forward = shares + most;
    double *backward = forward + stages * most, *free_at = backward + stages * most;
    double *next = free_at + stages, end = 0.0; /* next: pass of each stage, whole numbers */
    for (int64_t s = 0; s < stages; s++) {
        free_at[s] = next[s] = 0.0;
        for (int64_t j = 0; j < count; j++) forward[s * most + j] = backward[s * most + j] = -1.0;
    }
    for (int64_t done = 0; done < 2 * stages * count;) {
        for (int64_t s = 0; s < stages; s++) {
            int64_t warm = stages - 1 - s < count ? stages - 1 - s : count;
            int64_t in_turn = warm + 2 * (count - warm), k = (int64_t)next[s];
            for (; k < 2 * count; k++, done++) {
                int is_forward = k < warm || (k < in_turn && (k - warm) % 2 == 0);
                int64_t j = k < warm ? k : k >= in_turn ? k - count : (k - warm) / 2;
                double ready, *ends = is_forward ? forward : backward;
                if (is_forward) {
                    if (k >= warm) j += warm;
                    ready = s ? forward[(s - 1) * most + j] : 0.0;
                } else
                    ready = s < stages - 1 ? backward[(s + 1) * most + j] : forward[s * most + j];
                if (ready < 0.0) break;
                double first = costs[j] * shares[j];
                double time = (free_at[s] > ready ? free_at[s] : ready) +
                              (is_forward ? first : costs[j] - first);
                ends[s * most + j] = free_at[s] = time;
                if (time > end) end = time;
            }
            next[s] = (double)k;
        }
    }
    return end;
}

/* bubbles.longest_path_ms of the same. */
static double longest_path(const Exchanges *all, int64_t stages, int64_t most, int64_t count) {
    double *costs = all->scratch, *shares = costs + most, *forward = shares + most;
    double *backward = forward + most, others = (double)(stages - 1);
    double total = 0.0, behind = 0.0, ahead = 0.0, down = -INFINITY, longest = -INFINITY;
    for (int64_t k = 0; k < count; k++) {
        total += costs[k];
        forward[k] = costs[k] * shares[k];
        backward[k] = costs[k] - forward[k];
        if (k > 0 && k < stages) ahead += forward[k];
    }
    for (int64_t k = 0; k < count; k++) {
        double with = others * forward[k] - behind;
        if (with > down) down = with;
        with = down + (others * backward[k] - ahead);
        if (with > longest) longest = with;
        behind += backward[k];
        if (k >= stages - 1) behind -= backward[k - stages + 1];
        if (k + 1 < count) ahead -= forward[k + 1];
        if (k + stages < count) ahead += forward[k + stages];
    }
    return total + longest;
}

/* _Pipeline._simulate_ms of the same. */
static double simulate_below(const Exchanges *all, int64_t stages, int64_t most, int64_t count,
                             double limit) {
    double path = limit < INFINITY ? longest_path(all, stages, most, count) : 0.0;
    return path >= limit ? path : simulate(all, stages, most, count);
}

/* Whether a place is one of a pipeline's micro-batches, not a new one before or after them. */
static int is_within(const Pipeline *pipeline, int64_t place) {
    return place >= 0 && place < pipeline->count;
}

/* _Pipeline.compute_time_ms after the micro-batches at ``count`` places get these weights. The
 * scratch has room. */
static double time_after(const Exchanges *all, const Pipeline *pipeline, const int64_t *places,
                         const Weight *const *weights, int64_t count, double limit) {
    const MicroBatch *micro_batches = pipeline->micro_batches;
    double total = pipeline->total;
    for (int64_t k = 0; k < count; k++) {
        double before = is_within(pipeline, places[k]) ? micro_batches[places[k]].cost : 0.0;
        total = total - before + weights[k]->cost;
    }
    int64_t stages = pipeline->costs->pp, most = pipeline->count + 2, used = 0;
    if (stages == 1 || total >= limit) return total;
    double *costs = all->scratch, *shares = costs + most;
    for (int64_t m = -1; m <= pipeline->count; m++) {
        double cost = 0.0, share = 0.0;
        if (is_within(pipeline, m)) {
            cost = micro_batches[m].cost;
            share = micro_batches[m].share;
        }
        for (int64_t k = 0; k < count; k++)
            if (places[k] == m) {
                cost = weights[k]->cost;
                share = weights[k]->share;
            }
        if (cost == 0.0) continue;
        costs[used] = cost;
        shares[used++] = share;
    }
    return simulate_below(all, stages, most, used, limit);
}

/* 0 where there is no memory. */
static int update_time(Exchanges *all, Pipeline *pipeline) {
    if (!make_scratch(all, pipeline)) return 0;
    pipeline->total = 0.0;
    for (int64_t m = 0; m < pipeline->count; m++) pipeline->total += pipeline->micro_batches[m].cost;
    pipeline->time = time_after(all, pipeline, NULL, NULL, 0, INFINITY);
    return 1;
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
    micro->share = weight->share;
    return 1;
}

/* Count a micro-batch that was opened, before the others with ``fills``, drop one that became empty,
 * and update the time. */
static int settle(Exchanges *all, Pipeline *pipeline, int fills) {
    if (pipeline->micro_batches[pipeline->count].count) {
        if (fills) {
            MicroBatch opened = pipeline->micro_batches[pipeline->count];
            memmove(pipeline->micro_batches + 1, pipeline->micro_batches,
                    (size_t)pipeline->count * sizeof(MicroBatch));
            pipeline->micro_batches[0] = opened;
        }
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
    return update_time(all, pipeline);
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

/* _Pipeline.swap_places: whether it was made, NONE where there is no memory. */
static int swap_places(Exchanges *all, Pipeline *pipeline) {
    int64_t i = draw_below(all, pipeline->count), j = draw_below(all, pipeline->count);
    MicroBatch *one = &pipeline->micro_batches[i], *other = &pipeline->micro_batches[j];
    Weight of_one = {.cost = other->cost, .share = other->share};
    Weight of_other = {.cost = one->cost, .share = one->share};
    const int64_t places[2] = {i, j};
    const Weight *const weights[2] = {&of_one, &of_other};
    double limit = pipeline->time * all->shorter;
    if (time_after(all, pipeline, places, weights, 2, limit) >= limit) return 0;
    MicroBatch before = *one;
    *one = *other;
    *other = before;
    return update_time(all, pipeline) ? 1 : NONE;
}

/* exchange._exchange: whether it was made, NONE where there is no memory. */
static int try_exchange(Exchanges *all, Pipeline *first, Pipeline *second) {
    if (first->costs->pp > 1 && draw(all) < all->places) return swap_places(all, first);
    int64_t i = draw_below(all, first->count), fills = second->costs->pp > 1;
    int64_t j = draw_below(all, second->count + 1 + fills) - fills;
    if (first == second && i == j) return 0;
    MicroBatch *giving = &first->micro_batches[i];
    MicroBatch *taking = &second->micro_batches[j < 0 ? second->count : j];
    int64_t given[1] = {giving->sequences[draw_below(all, giving->count)]}, returned[2];
    int64_t back = draw_returned(all, taking, returned);
    double limit = (second->time > first->time ? second->time : first->time) * all->shorter;
    Weight of_giving, of_taking;
    const int64_t places[2] = {i, j};
    const Weight *const weights[2] = {&of_giving, &of_taking};
    if (!weigh(first, giving, given, 1, returned, back, &of_giving)) return 0;
    if (first != second && time_after(all, first, places, weights, 1, limit) >= limit) return 0;
    if (!weigh(second, taking, returned, back, given, 1, &of_taking)) return 0;
    double time = first == second ? time_after(all, first, places, weights, 2, limit)
                                  : time_after(all, second, places + 1, weights + 1, 1, limit);
    if (time >= limit) return 0;
    if (!replace(giving, given, 1, returned, back, &of_giving) ||
        !replace(taking, returned, back, given, 1, &of_taking) || !settle(all, first, j < 0))
        return NONE;
    if (first != second && !settle(all, second, j < 0)) return NONE;
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
        int within = first->costs->pp > 1 && draw(all) < all->within;
        Pipeline *second = within ? first : &all->pipelines[draw_below(all, all->count)];
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
        !weigh(pipeline, &empty, NULL, 0, micro->sequences, micro->count, &weight)) {
        PyErr_SetString(PyExc_ValueError, "a micro-batch is empty, or no mode holds it");
        return 0;
    }
    pipeline->count++;
    return replace(micro, NULL, 0, NULL, 0, &weight);
}

/* Read forward's share by mode; 0 with an exception set. */
static int read_shares(PyObject *shares, const Costs *costs, double *read) {
    if (PyTuple_Size(shares) != costs->mode_count) {
        PyErr_SetString(PyExc_ValueError, "shares of forward are not one of each mode");
        return 0;
    }
    for (int64_t m = 0; m < costs->mode_count; m++) {
        read[m] = PyFloat_AsDouble(PyTuple_GetItem(shares, m));
        if (PyErr_Occurred()) return 0;
    }
    return 1;
}

/* Read the pipelines of one class: (costs, placement, count, shares). 0 with an exception set. */
static int read_class(Exchanges *all, PyObject *of_class) {
    PyObject *capsule, *of_modes;
    Py_buffer bytes;
    Py_ssize_t count;
    double shares[MOST_MODES] = {0.0};
    if (!PyArg_ParseTuple(of_class, "Oy*nO!:exchange", &capsule, &bytes, &count, &PyTuple_Type,
                          &of_modes))
        return 0;
    Reader reader = {bytes.buf, bytes.len / (Py_ssize_t)sizeof(int64_t)};
    const Costs *costs = PyCapsule_GetPointer(capsule, COSTS);
    int good = costs != NULL && read_shares(of_modes, costs, shares);
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
        *pipeline = (Pipeline){.costs = costs};
        memcpy(pipeline->shares, shares, sizeof shares);
        int64_t micro_batches = read_word(&reader, 1);
        good = micro_batches != NONE;
        for (int64_t m = 0; good && m < micro_batches; m++) good = read_micro(&reader, pipeline);
        good = good && open_place(pipeline) && update_time(all, pipeline);
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
    "exchange(classes, lower_ms, drawn, fruitless, from_slowest, within, moves, swaps, places,\n"
    "         shorter)\n--\n\n"
    "Exchange sequences between the micro-batches of classes, each (costs, placement, count,\n"
    "shares), with forward's share of a micro-batch's time by mode.\n\n"
    "Returns the placements, packed; None if no exchange was made.";

PyObject *exchange(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *classes, *result = NULL;
    double lower;
    long long drawn, fruitless;
    Exchanges all = {.state = UINT64_C(0x9E3779B97F4A7C15)};
    if (!PyArg_ParseTuple(args, "O!dLLdddddd:exchange", &PyTuple_Type, &classes, &lower, &drawn,
                          &fruitless, &all.from_slowest, &all.within, &all.moves, &all.swaps,
                          &all.places, &all.shorter))
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
    PyMem_Free(all.scratch);
    return result;
}
