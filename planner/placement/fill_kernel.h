/* What the fill and the exchanges share: costs of a class, memory, packed placements. */

#ifndef SEQPLAN_FILL_KERNEL_H
#define SEQPLAN_FILL_KERNEL_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "floats are kept with more bits than Python's here: the fill stays in Python"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math changes results: the fill stays in Python"
#endif

#define NONE (-1)
#define EXACT ((int64_t)1 << 53) /* whole numbers below it are exact as doubles */

#define MOST_MODES 8 /* recomputation modes of a class */

/* A recomputation mode, with what each length costs in it: fleet.ModeCosts. */
typedef struct {
    double a, b, c;
    int64_t capacity;
    const double *work;
    const int64_t *cheap_from, *held_from;
} Mode;

enum {
    LENGTHS,
    PADDED,
    WORK,
    PREFERRED,
    CHEAP,
    HELD,
    COEFFICIENTS,
    CAPACITIES,
    SHARES,
    WEIGHTS,
    ARRAYS
};

/* fleet.ClassCosts, with the arrays that it points into. */
typedef struct {
    Py_buffer arrays[ARRAYS];
    int64_t pp, size, mode_count;
    double of_many, of_few, spread; /* bubbles.Bubbles */
    int64_t equal_up_to, together;
    const double *shares, *weights; /* ramps.Ramps of up to ``most_sizes``; none without stages */
    int64_t most_sizes;
    const int64_t *lengths, *padded, *preferred;
    Mode modes[MOST_MODES];
} Costs;

#define COSTS "seqplan.fill_costs"

/* Make room for one more element; 0 with an exception set where there is no memory. */
static inline int reserve(void **array, int64_t used, int64_t *room, size_t size) {
    if (used < *room) return 1;
    int64_t wanted = *room ? 2 * *room : 64;
    void *larger = NULL;
    if ((size_t)wanted <= SIZE_MAX / size) larger = PyMem_Realloc(*array, (size_t)wanted * size);
    if (larger == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    *array = larger;
    *room = wanted;
    return 1;
}

/* draws.Draws: the next of [0, 1). */
static inline double draw_from(uint64_t *of) {
    uint64_t state = *of;
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    *of = state;
    return (double)((state * UINT64_C(0x2545F4914F6CDD1D)) >> 11) * 0x1p-53;
}

/* What is left of a packed placement. */
typedef struct {
    const char *at;
    Py_ssize_t words;
} Reader;

/* The next word; a count of further words of ``each`` when above 0. NONE with an exception set. */
static inline int64_t read_word(Reader *reader, int64_t each) {
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

PyObject *exchange(PyObject *module, PyObject *args);
extern const char exchange_doc[];

PyObject *exchange_sized(PyObject *module, PyObject *args);
extern const char exchange_sized_doc[];

PyObject *assign_sized(PyObject *module, PyObject *args);
extern const char assign_sized_doc[];

PyObject *choose_sizes(PyObject *module, PyObject *args);
extern const char choose_sizes_doc[];

#endif
