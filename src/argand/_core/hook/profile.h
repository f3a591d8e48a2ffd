/* Ranges in torch's profiler: compiled regions, and kernels by name.
 *
 * Whether a profiler runs is a variable of one of torch's modules. Its dict is looked at again only when it was changed, so
 * a call without a profiler pays one comparison. */
#ifndef ARGAND_PROFILE_H
#define ARGAND_PROFILE_H

#include "watch.h"

extern PyObject *profiler_space; /* the module's dict, or NULL until set_profiler */
extern Tracked profiler_seen;    /* its state when `profiler_ran` was read */
extern bool profiler_ran;

bool profiler_look(void);
bool kernel_ranges_wanted(void); /* config.cpp.enable_kernel_profile */

/* Begins a range; NULL, without an exception, when that fails: the program goes on. */
PyObject *range_begin(PyObject *name, PyObject *const *values, Py_ssize_t count);
/* Ends it and gives it up; an exception that is set stays. */
void range_end(PyObject *range);

/* Sets the name of a kernel's ranges; -1 with an exception where `label` is no text. */
int set_label(PyObject **slot, PyObject *label);

extern PyMethodDef profile_methods[];

static inline bool
profiler_runs(void)
{
    if (UNLIKELY(profiler_space == NULL)) {
        return false;
    }
    return LIKELY(tracked_unchanged(&profiler_seen, profiler_space)) ? profiler_ran : profiler_look();
}

#endif
