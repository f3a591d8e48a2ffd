/* Frames whose own code is timed beside their transformed code, call by call. What a frame costs besides its graphs (guards,
 * resume functions, objects that are put together again) is in no comparison of these, and differs from frame to frame. So
 * once all graphs in it have been compared with eager's kernels, some of its calls run as the program wrote it. */
#include "core.h"

#include <time.h>

#define QUIET_RUNS 4       /* in a row, in which all was known of what ran */
#define BALANCED_PAIRS 4   /* in which either was first as often as second: its calls may come in twos, large and small */
#define MOST_PAIRS 12
#define LEAD_OWN 4         /* pairs that the frame's own code won beyond those that it lost, to be taken before that */
#define LEAD_COMPILED 2
#define OUTLIER 4          /* times the other of the pair, of which no more is counted */
#define LONG_RUN 10000000  /* ns: from here on one pair is enough, should transformed code win clearly */
#define STRANGE_RUNS 200   /* of other sizes than those that are being timed */
#define TIMED_AGAIN 1024   /* runs of the frame's own code; four times as many each time */

static _Thread_local bool timing;
static _Thread_local uint64_t unknown, undecided, judged_graphs, faster_graphs, later, unless_graphs;
static _Thread_local PyObject *last_unless; /* strong or NULL */

static uint64_t
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

/* Which of a pair comes first changes with no period, as the program's calls may have one. */
static bool
own_comes_first(unsigned pair)
{
    return __builtin_parity(pair) != 0;
}

void
trial_note_unknown(void)
{
    unknown++;
}

/* Whether runs of the entry are watched, and this one is timed. */
static bool
watch(Trial *trial, Entry *entry, int size_class)
{
    EntryTiming *state = &entry->timing;
    undecided++;
    if (timing) { /* a frame around it is */
        return false;
    }
    if (state->size_class != size_class) {
        if (state->pairs + state->quiet > 0 && ++state->strange < STRANGE_RUNS) {
            return false;
        }
        *state = (EntryTiming){
            .settled = state->settled, .lost = state->lost, .again = state->again, .size_class = size_class};
    }
    trial->entry = (Entry *)Py_NewRef(entry);
    bool own = own_comes_first(state->pairs) != state->half;
    if (state->quiet < QUIET_RUNS || (own && rerun_unless(entry->unless))) {
        return false;
    }
    trial->own = own;
    return true;
}

Trial
trial_begin(Entry *entry)
{
    int size_class = guard_size_class();
    Trial trial = {NULL};
    /* A whole frame with a graph that gains with its backward is left as it is: that was compared. */
    bool gains_later = entry->whole == WHOLE && entry->faster && entry->unless != NULL;
    bool settled = (entry->timing.settled >> size_class & 1) != 0 || entry->whole == NOT_ALIKE || entry->resumed || gains_later;
    bool timed = !LIKELY(settled) && watch(&trial, entry, size_class);
    if (UNLIKELY(entry->outrun != 0) && settled) {
        trial.entry = (Entry *)Py_NewRef(entry);
        trial.again = true;
    }
    trial.unknown = unknown;
    trial.undecided = undecided;
    trial.judged = judged_graphs;
    trial.faster = faster_graphs;
    trial.later = later;
    trial.unless = unless_graphs;
    if (!trial.own) {
        bool judged = entry->graph && (entry->judged >> size_class & 1) != 0;
        unknown += entry->whole == NOT_ALIKE || (entry->graph && !judged);
        judged_graphs += judged;
        faster_graphs += judged && entry->faster;
        if (judged && entry->unless != NULL) {
            unless_graphs++;
            Py_XSETREF(last_unless, Py_NewRef(entry->unless));
            later += entry->gain_later;
        }
    }
    if (timed) {
        timing = true;
        trial.began = now();
    }
    return trial;
}

static void
settle(Entry *entry, bool own)
{
    uint64_t class = (uint64_t)1 << entry->timing.size_class;
    entry->timing.settled |= class;
    if (own) {
        entry->outrun |= class;
        entry->timing.lost |= class;
        entry->timing.again = entry->timing.again == 0 ? TIMED_AGAIN : Py_MIN(entry->timing.again, UINT32_MAX / 4) * 4;
        entry->passed = 0;
    }
    entry->timing.own = entry->timing.compiled = 0;
    entry->timing.quiet = entry->timing.pairs = entry->timing.won = entry->timing.strange = 0;
    entry->timing.half = false;
}

static void
note_pair(Entry *entry, uint64_t own, uint64_t compiled)
{
    EntryTiming *state = &entry->timing;
    own += state->later;
    state->pairs++;
    state->won += own < compiled - compiled / 32;
    state->own += Py_MIN(own, OUTLIER * compiled);
    state->compiled += Py_MIN(compiled, OUTLIER * own);
    if (compiled >= LONG_RUN && own > compiled + compiled / 4) {
        settle(entry, false);
        return;
    }
    int lead = 2 * state->won - state->pairs;
    bool faster = state->own < state->compiled - state->compiled / 32, last = state->pairs >= MOST_PAIRS;
    if (state->pairs % BALANCED_PAIRS == 0 && (last || (faster ? lead >= LEAD_OWN : lead <= -LEAD_COMPILED))) {
        settle(entry, faster && lead >= -state->pairs / 4); /* sums alone hang on a few runs that had to wait */
    }
}

/* A run that was timed, of which all was known. */
static void
note_run(Entry *entry, const Trial *trial, uint64_t taken)
{
    EntryTiming *state = &entry->timing;
    if (!trial->own) {
        state->later = later - trial->later;
    }
    state->half = !state->half;
    if (state->half) {
        state->first = taken;
        return;
    }
    note_pair(entry, trial->own ? taken : state->first, trial->own ? state->first : taken);
}

/* The entry's classes of sizes are timed again: what it works on may have changed. */
static void
unsettle(Entry *entry)
{
    entry->timing.settled &= ~entry->timing.lost;
    entry->outrun &= ~entry->timing.lost;
    entry->timing.lost = 0;
}

PyObject *
trial_end(Trial trial, PyObject *result)
{
    Entry *entry = trial.entry;
    if (LIKELY(entry == NULL)) {
        return result;
    }
    bool known = result != NULL && unknown == trial.unknown;
    if (unless_graphs > trial.unless) {
        Py_XSETREF(entry->unless, Py_NewRef(last_unless));
    }
    if (trial.began != 0) {
        uint64_t taken = now() - trial.began;
        timing = false;
        if (known) {
            note_run(entry, &trial, taken);
        }
        else {
            entry->timing.half = false;
            entry->timing.quiet = 0;
        }
    }
    else if (trial.again) {
        if (result != NULL && !known) { /* in what its own code calls there is something new */
            unsettle(entry);
        }
    }
    else if (!known || undecided != trial.undecided) {
        entry->timing.quiet = 0;
    }
    else if (++entry->timing.quiet == QUIET_RUNS && faster_graphs == trial.faster &&
             (judged_graphs != trial.judged || (!entry->graph && entry->whole == IN_PART))) {
        settle(entry, true); /* eager's kernels run all of its graphs, or there is none */
    }
    Py_DECREF(entry);
    return result;
}

bool
timed_again(Entry *entry)
{
    if (entry->timing.lost != 0 && entry->passed >= entry->timing.again) {
        unsettle(entry);
        return (entry->outrun >> guard_size_class() & 1) == 0;
    }
    return entry->passed % TRIED_AGAIN == 0 && entry->whole == IN_PART;
}
