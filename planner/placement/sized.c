/* Micro-batches of given sizes: sequences assigned to them, exchanged between them, and other sizes for
 * a pipeline. The same operations as in assign_shapes.py, exchange_sized.py and change_sizes.py, with
 * every bit the same. */

#include "fill_kernel.h"

/* Take the buffers of ``number`` arrays; how many were taken. */
static int take_buffers(PyObject *fields, Py_buffer *arrays, int number) {
    int taken = 0;
    if (PyTuple_Size(fields) != number) {
        PyErr_SetString(PyExc_ValueError, "not micro-batches of sizes");
        return 0;
    }
    while (taken < number &&
           PyObject_GetBuffer(PyTuple_GetItem(fields, taken), &arrays[taken], PyBUF_WRITABLE) == 0)
        taken++;
    return taken;
}

static void release_buffers(Py_buffer *arrays, int taken) {
    for (int k = 0; k < taken; k++) PyBuffer_Release(&arrays[k]);
}

/* exchange_sized.SizedBatches, its fields in order, and what exchanges need beside it. */
enum { IN_PADDED, IN_SQUARES, IN_OWNER, IN_PIPELINE, IN_SIZES, IN_TOKENS, IN_A, IN_WEIGHT, IN_ROW,
       IN_GPUS, IN_LARGEST, IN_FIXED, IN_WORK, IN_SETTLED, SIZED_ARRAYS };

typedef struct {
    const double *padded, *squares, *sizes, *a, *weight, *gpus, *largest, *fixed;
    const int64_t *pipeline, *row;
    double *tokens, *work, *excess, *of_tokens, *of_work; /* the last two: what they exceed limits by */
    int64_t *owner, *settled, *by_owner, *counts, *firsts, *begins, *exceeds, *offered, *takeable, *targets;
    int64_t sequences, places, pipelines, classes, drawn, block, taken_from;
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
        excess += b->of_tokens[place] = weigh_tokens(b, b->tokens[place], place);
    excess += b->of_work[pipeline] = weigh_work(b, b->work[pipeline], pipeline);
    b->exceeds[pipeline] = excess > 0.0;
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

/* exchange_sized._Exchanges._weigh; infinite as well where it is no less than ``least``. */
static double weigh_exchange(const Sized *b, int64_t top, const SizedExchange *x, double least) {
    int64_t pipeline = b->pipeline[x->target];
    const double *here = b->padded + b->row[top] * b->sequences;
    const double *there = b->padded + b->row[pipeline] * b->sequences;
    double into = add_two(here, x->taken, x->other) - add_two(here, x->given, x->second);
    double more = add_two(b->squares, x->taken, x->other) - add_two(b->squares, x->given, x->second);
    double change = weigh_tokens(b, b->tokens[x->source] + into, x->source);
    change -= b->of_tokens[x->source];
    double top_ms = b->work[top] + b->a[x->source] * more;
    if (pipeline != top && !b->exceeds[pipeline] &&
        change + weigh_work(b, top_ms, top) - b->of_work[top] >= least)
        return INFINITY; /* as nothing is negative that the other pipeline adds */
    if (value_of(here, x->taken) > b->largest[top] || value_of(here, x->other) > b->largest[top] ||
        value_of(there, x->given) > b->largest[pipeline] ||
        value_of(there, x->second) > b->largest[pipeline])
        return INFINITY;
    double out = add_two(there, x->given, x->second) - add_two(there, x->taken, x->other);
    double target_ms = b->a[x->target] * more;
    if (pipeline == top) top_ms -= target_ms;
    change += weigh_tokens(b, b->tokens[x->target] + out, x->target);
    change -= b->of_tokens[x->target];
    change += weigh_work(b, top_ms, top);
    change -= b->of_work[top];
    if (pipeline != top) {
        change += weigh_work(b, b->work[pipeline] - target_ms, pipeline);
        change -= b->of_work[pipeline];
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

/* exchange_sized._Exchanges._list_targets: how many micro-batches; sets their sequences as well. */
static int64_t offer_targets(Sized *b, int64_t top) {
    int64_t number = 0, late = b->of_work[top] > 0.0, above_size = 0;
    for (int64_t place = b->begins[top]; place < b->begins[top + 1]; place++)
        above_size |= b->of_tokens[place] > 0.0;
    b->taken_from = 0;
    for (int64_t place = 0; place < b->places; place++) {
        int64_t pipeline = b->pipeline[place];
        if (b->row[pipeline] != b->row[top] ||
            (late && b->work[pipeline] < b->limit - b->fixed[pipeline]) ||
            (above_size && b->tokens[place] < b->sizes[place])) {
            b->targets[number++] = place;
            memcpy(b->takeable + b->taken_from, b->by_owner + b->firsts[place],
                   (size_t)b->counts[place] * sizeof(int64_t));
            b->taken_from += b->counts[place];
        }
    }
    return number;
}

/* exchange_sized._Exchanges._exchange: the other pipeline, NONE if no exchange helps. */
static int64_t exchange_with(Sized *b, int64_t top) {
    sort_by_owner(b);
    int64_t number = 0;
    for (int64_t place = b->begins[top]; place < b->begins[top + 1]; place++)
        if (b->of_work[top] > 0.0 || b->of_tokens[place] > 0.0) {
            memcpy(b->offered + number, b->by_owner + b->firsts[place],
                   (size_t)b->counts[place] * sizeof(int64_t));
            number += b->counts[place];
        }
    int64_t targeted = offer_targets(b, top), offers = b->taken_from + targeted;
    if (!number || !offers) return NONE;
    SizedExchange best = {NONE, NONE, NONE, NONE, NONE, NONE};
    double least = -b->least_gain;
    for (int64_t drawn = 1; drawn <= b->drawn; drawn++) {
        SizedExchange x = {.given = b->offered[draw_index(b, number)], .other = NONE};
        x.source = b->owner[x.given];
        x.second = draw_second(b, x.given, x.source);
        int64_t taken = draw_index(b, offers);
        if (taken < b->taken_from) {
            x.taken = b->takeable[taken];
            x.target = b->owner[x.taken];
            x.other = draw_second(b, x.taken, x.target);
        } else {
            x.taken = NONE;
            x.target = b->targets[taken - b->taken_from];
        }
        if (x.source != x.target) {
            double change = weigh_exchange(b, top, &x, least);
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
    int taken = take_buffers(fields, arrays, SIZED_ARRAYS);
    if (taken == SIZED_ARRAYS && read_sized(&b, arrays)) {
        size_t words = (size_t)(3 * b.sequences + 4 * b.places + 4 * b.pipelines + 1);
        int64_t *room = PyMem_Calloc(words, sizeof(int64_t));
        if (room == NULL) {
            PyErr_NoMemory();
        } else {
            b.by_owner = room;
            b.counts = b.by_owner + b.sequences;
            b.firsts = b.counts + b.places;
            b.begins = b.firsts + b.places;
            b.exceeds = b.begins + b.pipelines + 1;
            b.excess = (double *)(b.exceeds + b.pipelines);
            b.of_work = b.excess + b.pipelines;
            b.of_tokens = b.of_work + b.pipelines;
            b.offered = (int64_t *)(b.of_tokens + b.places);
            b.takeable = b.offered + b.sequences;
            b.targets = b.takeable + b.sequences;
            for (int64_t k = 0; k < b.places; k++) b.begins[b.pipeline[k] + 1]++;
            for (int64_t p = 0; p < b.pipelines; p++) b.begins[p + 1] += b.begins[p];
            int64_t made = 0, stuck = run_sized(&b, most_made, &made);
            result = Py_BuildValue("(LLK)", (long long)stuck, (long long)made,
                                   (unsigned long long)b.state);
            PyMem_Free(room);
        }
    }
    release_buffers(arrays, taken);
    return result;
}

static int64_t fullest_place(const double *room, int64_t places, double tokens) {
    int64_t place = NONE;
    for (int64_t k = 0; k < places; k++)
        if (room[k] >= tokens && (place == NONE || room[k] < room[place])) place = k;
    return place;
}

static int64_t emptiest_place(const double *room, int64_t places) {
    int64_t place = 0;
    for (int64_t k = 1; k < places; k++)
        if (room[k] > room[place]) place = k;
    return place;
}

/* assign_shapes.assign_in_python. */
enum { TO_TOKENS, TO_SQUARES, TO_ROOM, TO_PIPELINE, TO_A, TO_WORK, TO_SUMS, TO_PLACES, TO_ARRAYS };

static void assign_all(const Py_buffer *arrays, double to_assign, double *left) {
    const double *tokens = arrays[TO_TOKENS].buf, *squares = arrays[TO_SQUARES].buf;
    const double *a = arrays[TO_A].buf, *sums = arrays[TO_SUMS].buf;
    const int64_t *pipeline = arrays[TO_PIPELINE].buf;
    double *room = arrays[TO_ROOM].buf, *work = arrays[TO_WORK].buf;
    int64_t *chosen = arrays[TO_PLACES].buf;
    int64_t sequences = arrays[TO_TOKENS].len / 8, places = arrays[TO_ROOM].len / 8;
    for (int64_t i = 0; i < sequences; i++) {
        int by_work = to_assign > 0.0;
        int64_t place = NONE;
        double first = 0.0;
        for (int64_t k = 0; k < places; k++) {
            if (room[k] < tokens[i]) continue;
            int64_t p = pipeline[k];
            double value = by_work ? work[p] : left[p] / sums[p];
            if (place == NONE || value > first ||
                (value == first && (by_work ? room[k] < room[place] : room[k] > room[place]))) {
                place = k;
                first = value;
            }
        }
        if (place == NONE) place = emptiest_place(room, places);
        chosen[i] = place;
        room[place] -= tokens[i];
        left[pipeline[place]] -= tokens[i];
        work[pipeline[place]] -= a[place] * squares[i];
        to_assign -= squares[i];
    }
}

const char assign_sized_doc[] =
    "assign_sized(arrays, to_assign)\n--\n\n"
    "Assign sequences to micro-batches; changes room, work and places.";

PyObject *assign_sized(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *fields, *result = NULL;
    double to_assign;
    Py_buffer arrays[TO_ARRAYS];
    if (!PyArg_ParseTuple(args, "O!d:assign_sized", &PyTuple_Type, &fields, &to_assign)) return NULL;
    int taken = take_buffers(fields, arrays, TO_ARRAYS);
    if (taken == TO_ARRAYS) {
        int64_t places = arrays[TO_ROOM].len / 8, pipelines = arrays[TO_SUMS].len / 8;
        const int64_t *pipeline = arrays[TO_PIPELINE].buf;
        int good = places > 0 && arrays[TO_PIPELINE].len == 8 * places &&
                   arrays[TO_A].len == 8 * places && arrays[TO_WORK].len == 8 * pipelines &&
                   arrays[TO_SQUARES].len == arrays[TO_TOKENS].len &&
                   arrays[TO_PLACES].len == arrays[TO_TOKENS].len;
        for (int64_t k = 0; good && k < places; k++)
            good = pipeline[k] >= 0 && pipeline[k] < pipelines;
        double *left = good ? PyMem_Malloc((size_t)(8 * pipelines)) : NULL;
        if (!good) {
            PyErr_SetString(PyExc_ValueError, "not micro-batches of sizes");
        } else if (left == NULL) {
            PyErr_NoMemory();
        } else {
            memcpy(left, arrays[TO_SUMS].buf, (size_t)(8 * pipelines));
            assign_all(arrays, to_assign, left);
            result = Py_NewRef(Py_None);
        }
        PyMem_Free(left);
    }
    release_buffers(arrays, taken);
    return result;
}

/* change_sizes.SizeChange, its fields in order. */
enum { OF_PADDED, OF_SQUARES, OF_OWNER, OF_ORDER, OF_CHOICES, OF_SUMS, OF_FIXED, OF_SIZES, OF_A, OF_B,
       OF_ARRAYS };

#define MOST_TRIED 64

typedef struct {
    const double *padded, *squares, *sums, *fixed, *sizes, *a, *b;
    const int64_t *owner, *order, *choices;
    int64_t sequences, number, width, size_count, held;
    double limit, work, before, least, spread, gpus, class_b, above_all;
    double *room, *done;
    int64_t *items;
} Change;

/* change_sizes.weigh_packed, in the order of packing. */
static double weigh_packed(const Change *c, int64_t choice, int fullest) {
    const int64_t *sizes = c->choices + choice * c->width;
    int64_t places = 0;
    for (; places < c->width && sizes[places] != NONE; places++) {
        c->room[places] = c->sizes[sizes[places]];
        c->done[places] = 0.0;
    }
    for (int64_t j = 0; j < c->held; j++) {
        int64_t i = c->items[j];
        int64_t place = fullest ? fullest_place(c->room, places, c->padded[i]) : NONE;
        if (place == NONE) place = emptiest_place(c->room, places);
        c->room[place] -= c->padded[i];
        c->done[place] += c->squares[i];
    }
    double excess = 0.0, work = c->fixed[choice], largest = c->sizes[c->size_count - 1];
    for (int64_t k = 0; k < places; k++) {
        double size = c->sizes[sizes[k]], held = size - c->room[k];
        excess += c->b[sizes[k]] * (above(held, size) + c->above_all * above(held, largest));
        work += c->a[sizes[k]] * c->done[k];
    }
    return excess + above(work, c->limit);
}

/* change_sizes.choose_in_python: the choice, NONE if none has less excess, and how it is packed. */
static int64_t choose_best(Change *c, int64_t most_tried, int *fullest) {
    double values[MOST_TRIED], more[MOST_TRIED], tokens = 0.0;
    int64_t places[MOST_TRIED], tried = 0, best = NONE;
    for (int64_t j = 0; j < c->held; j++) tokens += c->padded[c->items[j]];
    for (int64_t k = 0; k < c->number; k++) {
        double by_work = c->fixed[k] + c->work - c->limit, by_tokens = (tokens - c->sums[k]) * c->class_b;
        double added = c->spread * c->gpus * c->class_b * above(c->sums[k], c->before);
        double value = c->gpus * (by_tokens > by_work ? by_tokens : by_work);
        value = (value > 0.0 ? value : 0.0) + added;
        if (tried == most_tried && !(value < values[tried - 1])) continue;
        int64_t at = tried == most_tried ? tried - 1 : tried++;
        for (; at > 0 && value < values[at - 1]; at--) {
            values[at] = values[at - 1], more[at] = more[at - 1], places[at] = places[at - 1];
        }
        values[at] = value, more[at] = added, places[at] = k;
    }
    for (int64_t k = 0; k < tried && values[k] < c->least; k++)
        for (int way = 1; way >= 0; way--) {
            double excess = c->gpus * weigh_packed(c, places[k], way) + more[k];
            if (excess < c->least) {
                c->least = excess;
                best = places[k];
                *fullest = way;
            }
        }
    return best;
}

static int read_change(Change *c, const Py_buffer *arrays, int64_t first, int64_t last) {
    c->padded = arrays[OF_PADDED].buf, c->squares = arrays[OF_SQUARES].buf;
    c->owner = arrays[OF_OWNER].buf, c->order = arrays[OF_ORDER].buf;
    c->choices = arrays[OF_CHOICES].buf, c->sums = arrays[OF_SUMS].buf, c->fixed = arrays[OF_FIXED].buf;
    c->sizes = arrays[OF_SIZES].buf, c->a = arrays[OF_A].buf, c->b = arrays[OF_B].buf;
    c->sequences = arrays[OF_PADDED].len / 8, c->number = arrays[OF_SUMS].len / 8;
    c->size_count = arrays[OF_SIZES].len / 8;
    int good = c->number > 0 && c->size_count > 0 && arrays[OF_SQUARES].len == 8 * c->sequences &&
               arrays[OF_OWNER].len == 8 * c->sequences && arrays[OF_ORDER].len == 8 * c->sequences &&
               arrays[OF_FIXED].len == 8 * c->number && arrays[OF_A].len == 8 * c->size_count &&
               arrays[OF_B].len == 8 * c->size_count;
    if (good) {
        c->width = arrays[OF_CHOICES].len / 8 / c->number;
        good = c->width > 0 && arrays[OF_CHOICES].len == 8 * c->width * c->number;
    }
    for (int64_t k = 0; good && k < c->width * c->number; k++)
        good = c->choices[k] >= (k % c->width ? NONE : 0) && c->choices[k] < c->size_count;
    for (int64_t j = 0; good && j < c->sequences; j++) {
        good = c->order[j] >= 0 && c->order[j] < c->sequences;
        int64_t owner = good ? c->owner[c->order[j]] : NONE;
        if (owner >= first && owner < last) c->items[c->held++] = c->order[j];
    }
    return good;
}

const char choose_sizes_doc[] =
    "choose_sizes(arrays, limits, numbers)\n--\n\n"
    "Choose sizes that leave a pipeline less excess: which, else -1, and how they are packed.";

PyObject *choose_sizes(PyObject *Py_UNUSED(module), PyObject *args) {
    Change c = {0};
    PyObject *fields, *result = NULL;
    Py_buffer arrays[OF_ARRAYS];
    long long first, last, most_tried;
    if (!PyArg_ParseTuple(args, "O!(dddddddd)(LLL):choose_sizes", &PyTuple_Type, &fields, &c.limit,
                          &c.work, &c.before, &c.least, &c.spread, &c.gpus, &c.class_b, &c.above_all,
                          &first, &last, &most_tried))
        return NULL;
    int taken = take_buffers(fields, arrays, OF_ARRAYS), fullest = 0;
    if (taken == OF_ARRAYS) {
        size_t words = (size_t)(arrays[OF_PADDED].len / 8 + 2 * (arrays[OF_CHOICES].len / 8));
        c.items = PyMem_Malloc(8 * words);
        if (c.items == NULL) {
            PyErr_NoMemory();
        } else if (most_tried < 1 || most_tried > MOST_TRIED || !read_change(&c, arrays, first, last)) {
            PyErr_SetString(PyExc_ValueError, "not choices of sizes");
        } else {
            c.room = (double *)(c.items + c.sequences);
            c.done = c.room + c.width;
            int64_t best = choose_best(&c, most_tried, &fullest);
            result = Py_BuildValue("(Li)", (long long)best, fullest);
        }
        PyMem_Free(c.items);
    }
    release_buffers(arrays, taken);
    return result;
}
