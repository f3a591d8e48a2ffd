/* Comparing a thousand tensors with what is expected of them: most of the time goes into waiting for their memory.
 *
 * Tensors of which the same is expected follow each other (a run), so that the expectation is taken apart only once: into
 * words of the implementation object. The memory of a block of tensors is asked for before any of their words is compared,
 * and nothing is decided before all words were. A tensor whose words differ is looked at in the ordinary way. */
#include "tensor.h"

typedef uint64_t Pair __attribute__((vector_size(16)));

/* Two words next to each other in the implementation object. */
typedef struct {
    Pair want, mask;
    int offset;
} Probe;

#define MAX_PROBES 8 /* a rank, keys, dtype and device, and twice five sizes */
#define MAX_WORDS (2 * MAX_PROBES)
#define WORTH_PROBES 4 /* tensors in a run */

typedef struct {
    const TensorSpec *spec;
    PyTypeObject *type;
    int end;                      /* of the run */
    int probe_begin, probe_end;   /* none: each tensor is looked at in the ordinary way */
} Run;

struct TensorRuns {
    int count, num_runs;
    unsigned generation; /* of the layout that the probes were made for */
    PyObject **objs;     /* borrowed */
    int *inputs;
    Run *runs;
    Probe *probes;
};

/* ---- making ---------------------------------------------------------------------------------------------------- */

typedef struct {
    int offset;
    uint64_t want, mask;
} Word;

typedef struct {
    Word words[MAX_WORDS];
    int count;
} Words;

static bool
expect_bytes(Words *words, int offset, const void *bytes, int size)
{
    for (int i = 0; i < size; i++) {
        int at = (offset + i) & ~7, k = 0;
        while (k < words->count && words->words[k].offset != at) {
            k++;
        }
        if (k == MAX_WORDS) {
            return false;
        }
        if (k == words->count) {
            words->words[words->count++] = (Word){.offset = at};
        }
        ((uint8_t *)&words->words[k].want)[(offset + i) & 7] = ((const uint8_t *)bytes)[i];
        ((uint8_t *)&words->words[k].mask)[(offset + i) & 7] = 0xFF;
    }
    return true;
}

static bool
expect_dims(Words *words, int offset, const DimSpec *dims)
{
    for (int i = 0; i < dims->ndim; i++) {
        if (dims->values[i] != OPEN_DIM && !expect_bytes(words, offset + 8 * i, &dims->values[i], 8)) {
            return false;
        }
    }
    return true;
}

static int
by_offset(const void *a, const void *b)
{
    return ((const Word *)a)->offset - ((const Word *)b)->offset;
}

/* Returns how many probes there are; 0: the ordinary way. */
static int
make_probes(const TensorSpec *spec, Probe *probes)
{
    Words words = {.count = 0};
    uint64_t rank = spec->sizes.ndim >= 0 ? spec->sizes.ndim : spec->strides.ndim;
    bool ranked = spec->sizes.ndim >= 0 || spec->strides.ndim >= 0;
    bool both = spec->sizes.ndim < 0 || spec->strides.ndim < 0 || spec->sizes.ndim == spec->strides.ndim;
    if (rank > 5 || !ranked || !both || !expect_bytes(&words, tensor_layout.rank, &rank, 8) ||
        !expect_bytes(&words, tensor_layout.keys, &spec->expected.keys, 8) ||
        !expect_bytes(&words, tensor_layout.dtype, &spec->expected.dtype, 2) ||
        !expect_bytes(&words, tensor_layout.device, spec->expected.device, 2) ||
        !expect_dims(&words, tensor_layout.sizes, &spec->sizes) || !expect_dims(&words, tensor_layout.strides, &spec->strides)) {
        return 0;
    }
    qsort(words.words, words.count, sizeof(Word), by_offset);
    int count = 0;
    for (int k = 0; k < words.count; k++) {
        const Word *word = &words.words[k];
        if (count == MAX_PROBES || word->offset < 8) {
            return 0;
        }
        bool with_next = k + 1 < words.count && word[1].offset == word->offset + 8;
        /* alone, it goes with the word before it: the one after it may be none of the object's */
        probes[count++] = with_next ? (Probe){{word->want, word[1].want}, {word->mask, word[1].mask}, word->offset}
                                    : (Probe){{0, word->want}, {0, word->mask}, word->offset - 8};
        k += with_next;
    }
    return count;
}

static int
by_spec_and_address(const void *a, const void *b)
{
    const TensorOp *left = a, *right = b;
    if (left->spec != right->spec) {
        return left->spec < right->spec ? -1 : 1;
    }
    if (left->type != right->type) {
        return left->type < right->type ? -1 : 1;
    }
    return left->obj < right->obj ? -1 : left->obj > right->obj;
}

static bool
make_runs(TensorRuns *runs, const TensorOp *ops)
{
    int num_probes = 0;
    for (int begin = 0, end; begin < runs->count; begin = end) {
        for (end = begin; end < runs->count && ops[end].spec == ops[begin].spec && ops[end].type == ops[begin].type; end++) {
        }
        Run *run = &runs->runs[runs->num_runs++];
        *run = (Run){ops[begin].spec, ops[begin].type, end, num_probes, num_probes};
        if (!tensor_spec_pure(run->spec)) {
            return false;
        }
        if (end - begin >= WORTH_PROBES) {
            run->probe_end += make_probes(run->spec, &runs->probes[num_probes]);
            num_probes = run->probe_end;
        }
    }
    return true;
}

TensorRuns *
tensor_runs_new(TensorOp *ops, int count)
{
    if (count > 1) {
        qsort(ops, count, sizeof(TensorOp), by_spec_and_address);
    }
    TensorRuns *runs = PyMem_Calloc(1, sizeof(TensorRuns));
    if (runs == NULL) {
        return NULL;
    }
    runs->count = count;
    runs->generation = tensor_layout_generation;
    runs->objs = PyMem_Calloc(count + 1, sizeof(PyObject *));
    runs->inputs = PyMem_Calloc(count + 1, sizeof(int));
    runs->runs = PyMem_Calloc(count + 1, sizeof(Run));
    runs->probes = PyMem_Calloc((count / WORTH_PROBES + 1) * MAX_PROBES, sizeof(Probe));
    if (runs->objs == NULL || runs->inputs == NULL || runs->runs == NULL || runs->probes == NULL || !make_runs(runs, ops)) {
        tensor_runs_free(runs);
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        runs->objs[i] = ops[i].obj;
        runs->inputs[i] = ops[i].input;
    }
    return runs;
}

void
tensor_runs_free(TensorRuns *runs)
{
    if (runs != NULL) {
        PyMem_Free(runs->objs);
        PyMem_Free(runs->inputs);
        PyMem_Free(runs->runs);
        PyMem_Free(runs->probes);
        PyMem_Free(runs);
    }
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

#define BLOCK 64 /* tensors that are read together: the processor waits for the memory of many at once */

static bool
match_one_by_one(const TensorRuns *runs, const Run *run, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        if (Py_TYPE(runs->objs[i]) != run->type || !tensor_spec_match_pure(run->spec, runs->objs[i])) {
            return false;
        }
    }
    return true;
}

/* The probes stay in registers where their number is known. */
static inline __attribute__((always_inline)) bool
fields_usual(const char *const *impls, int count, const Probe *from, const int num, bool wanted)
{
    const int autograd_at = tensor_layout.autograd, requires_grad_at = tensor_layout.requires_grad;
    Probe probes[MAX_PROBES];
    memcpy(probes, from, num * sizeof(Probe));
    Pair differ = {0, 0};
    for (int i = 0; i < count; i++) {
        const char *autograd;
        memcpy(&autograd, impls[i] + autograd_at, sizeof(autograd));
        if (UNLIKELY((autograd != NULL) != wanted || (wanted && autograd[requires_grad_at] != 1))) {
            return false;
        }
#pragma GCC unroll 8
        for (int k = 0; k < num; k++) {
            Pair words;
            memcpy(&words, impls[i] + probes[k].offset, sizeof(words));
            differ |= (words ^ probes[k].want) & probes[k].mask;
        }
    }
    return (differ[0] | differ[1]) == 0;
}

/* Looks for what is usual; false: look closer. */
static inline bool
match_together(const TensorRuns *runs, const Run *run, int begin, int count)
{
    PyObject *const *objs = &runs->objs[begin];
    const TensorLayout at = tensor_layout;
    const char *impls[BLOCK];
    for (int i = 0; i < count; i++) {
        if (UNLIKELY(Py_TYPE(objs[i]) != run->type)) {
            return false;
        }
        memcpy(&impls[i], (const char *)objs[i] + at.impl, sizeof(impls[i]));
        if (UNLIKELY(impls[i] == NULL)) {
            return false;
        }
        __builtin_prefetch(impls[i] + at.autograd);
        __builtin_prefetch(impls[i] + at.sizes);
        __builtin_prefetch(impls[i] + at.keys);
    }
    const Probe *probes = &runs->probes[run->probe_begin];
    bool wanted = run->spec->requires_grad;
    int num = run->probe_end - run->probe_begin;
    switch (num) { /* of most vectors and matrices: nearly all parameters are */
    case 3:
        return wanted ? fields_usual(impls, count, probes, 3, true) : fields_usual(impls, count, probes, 3, false);
    case 4:
        return wanted ? fields_usual(impls, count, probes, 4, true) : fields_usual(impls, count, probes, 4, false);
    default:
        return fields_usual(impls, count, probes, num, wanted);
    }
}

/* inputs: a tuple for those that are collected, or NULL. */
bool
tensor_runs_match(const TensorRuns *runs, PyObject *inputs)
{
    if (runs->generation != tensor_layout_generation) {
        return false;
    }
    const Run *run = runs->runs;
    for (int begin = 0, end; begin < runs->count; begin = end) {
        run += begin == run->end;
        end = run->end - begin > BLOCK ? begin + BLOCK : run->end;
        bool usual = LIKELY(run->probe_end > run->probe_begin) && match_together(runs, run, begin, end - begin);
        if (UNLIKELY(!usual) && !match_one_by_one(runs, run, begin, end)) {
            return false;
        }
        for (int i = begin; inputs != NULL && i < end; i++) {
            if (LIKELY(runs->inputs[i] >= 0)) {
                PyTuple_SET_ITEM(inputs, runs->inputs[i], Py_NewRef(runs->objs[i]));
            }
        }
    }
    return true;
}
