/* Calls that run as eager's: guards only tell then that something is new, and where all calls that look alike run so, they are
 * asked each 64th time. Any call may run so: what is lost is that a better entry comes a little later. */
#include "core.h"
#include "tensor.h"

#define LOOKS 8      /* kept for a code */
#define MOST_SEEN 64 /* objects of a call */

struct LooksLeftAlone {
    struct {
        uint64_t look;
        unsigned left;    /* calls that look so until guards are asked */
        bool compiled;    /* calls that look so run compiled, too: guards tell which */
        PyObject *unless; /* strong; NULL: none */
    } of[LOOKS];
};

static inline uint64_t
mixed(uint64_t look, uint64_t more)
{
    look = (look ^ more) * UINT64_C(0x9E3779B97F4A7C15);
    return look ^ look >> 29;
}

/* What tells two calls apart at first sight: how large tensors are and whether gradients are recorded, which integers and
 * other objects there are; of floats and strings only that they are. */
static uint64_t
look_at(uint64_t look, PyObject *obj, int *left)
{
    if (obj == NULL || --*left < 0) {
        return mixed(look, 1);
    }
    PyTypeObject *type = Py_TYPE(obj);
    TensorFields fields;
    if (tensor_layout.known && tensor_type_ok(obj)) {
        if (!tensor_layout_read(obj, &fields)) {
            return mixed(look, 2);
        }
        look = mixed(look, (uintptr_t)type ^ (uint64_t)(fields.ndim << 2 | (fields.requires_grad & 3)));
        for (int i = 0; i < fields.ndim; i++) {
            look = mixed(look, (uint64_t)fields.sizes[i]);
        }
        return look;
    }
    if (type == &PyTuple_Type || type == &PyList_Type) {
        look = mixed(look, (uintptr_t)type ^ (uint64_t)Py_SIZE(obj));
        for (Py_ssize_t i = 0; i < Py_SIZE(obj) && *left > 0; i++) {
            look = look_at(look, PySequence_Fast_GET_ITEM(obj, i), left);
        }
        return look;
    }
    if (type == &PyDict_Type) {
        PyObject *key, *value;
        Py_ssize_t place = 0;
        look = mixed(look, (uintptr_t)type ^ (uint64_t)PyDict_GET_SIZE(obj));
        while (*left > 0 && PyDict_Next(obj, &place, &key, &value)) {
            look = look_at(mixed(look, (uintptr_t)key), value, left);
        }
        return look;
    }
    if (type == &PyLong_Type) { /* it may be a size */
        int overflow;
        return mixed(look, (uint64_t)PyLong_AsLongLongAndOverflow(obj, &overflow) ^ (uintptr_t)type);
    }
    return mixed(look, (uintptr_t)(type == &PyFloat_Type || type == &PyUnicode_Type ? (PyObject *)type : obj));
}

static uint64_t
look_of_call(const FrameView *view, const PyObject *key)
{
    int left = MOST_SEEN;
    uint64_t look = mixed(mixed((uintptr_t)key, (uintptr_t)view->globals), (uintptr_t)view->closure);
    look = mixed(look, state_at_sight());
    for (Py_ssize_t i = 0; i < view->nargs; i++) {
        look = look_at(look, view->args[i], &left);
    }
    return look;
}

bool
left_alone_now(CodeCache *cache, const PyObject *key, const FrameView *view)
{
    uint64_t look = look_of_call(view, key);
    LooksLeftAlone *looks = cache->left_alone;
    unsigned place = look % LOOKS;
    if (looks->of[place].look != look || looks->of[place].left == 0) {
        return false;
    }
    looks->of[place].left--;
    return !rerun_unless(looks->of[place].unless);
}

void
left_alone_note(CodeCache *cache, Entry *entry, const FrameView *view)
{
    if (cache->left_alone == NULL) {
        cache->left_alone = PyMem_Calloc(1, sizeof(LooksLeftAlone));
        if (cache->left_alone == NULL) {
            return;
        }
    }
    LooksLeftAlone *looks = cache->left_alone;
    uint64_t look = look_of_call(view, entry->key);
    unsigned place = look % LOOKS, left = TRIED_AGAIN - 1 - entry->passed % TRIED_AGAIN;
    if (looks->of[place].look == look && looks->of[place].compiled) {
        return;
    }
    entry->passed += left;
    looks->of[place].look = look;
    looks->of[place].compiled = false;
    looks->of[place].left = left;
    Py_XSETREF(looks->of[place].unless, Py_XNewRef(entry->unless));
}

void
left_alone_not(CodeCache *cache, const Entry *entry, const FrameView *view)
{
    LooksLeftAlone *looks = cache->left_alone;
    if (LIKELY(looks == NULL)) {
        return;
    }
    uint64_t look = look_of_call(view, entry->key);
    looks->of[look % LOOKS].look = look;
    looks->of[look % LOOKS].left = 0;
    looks->of[look % LOOKS].compiled = true;
}

void
left_alone_forget(CodeCache *cache)
{
    LooksLeftAlone *looks = cache->left_alone;
    for (int i = 0; looks != NULL && i < LOOKS; i++) {
        looks->of[i].look = looks->of[i].left = 0;
        Py_CLEAR(looks->of[i].unless);
    }
}
