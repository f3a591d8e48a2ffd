// The steps of an LSTM, forward and backward. Threads share the batch, or the units where it has few rows or the weight
// is larger than a cache: then they wait for each other once a step.
#include "recurrent_steps.h"

enum {
  BLOCK = 4 * LANES,   // columns of a block of units: a vector of each gate
  CACHE = 1 << 20,     // bytes of a weight that each thread reads as a whole in each step
  GRAIN = 1 << 17,     // terms of a step that a thread more is worth it
};

struct Sequence {  // numbers of both functions, in order; kept: gates and cells, or (backward) there are gradients of the results
  i64 steps, batch, width, reverse, kept, grad_step, grad_row;
  i64 step(i64 number) const { return reverse ? steps - 1 - number : number; }
};

extern "C" int omp_get_max_threads(void);

// Into how many parts the batch and the units are divided.
struct Team {
  i64 rows, units;
  Team(const Sequence& s) {
    i64 threads = omp_get_max_threads(), terms = 4 * s.width * s.width, each = s.batch / MR;
    rows = terms * 4 > CACHE || each < 1 ? 1 : each < threads ? each : threads;
    units = threads / rows;
    if (units > s.batch / rows * terms / GRAIN + 1) units = s.batch / rows * terms / GRAIN + 1;
  }
  i64 threads() const { return rows * units; }
};

INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// The rows of the batch and the units that this thread computes; units by pairs of vectors.
struct Share {
  i64 first, last, from, to;
  bool together;  // with other threads, which compute the other units of these rows
  Share(Team team, const Sequence& s) {
    i64 threads = omp_get_num_threads(), me = omp_get_thread_num(), pairs = (s.width + NR - 1) / NR;
    if (threads < team.threads()) team.rows = 1, team.units = threads;
    i64 high = (s.batch + team.rows - 1) / team.rows, wide = (pairs + team.units - 1) / team.units * NR;
    first = least(me / team.units * high, s.batch);
    last = least(first + high, s.batch);
    from = least(me % team.units * wide, s.width);
    to = least(from + wide, s.width);
    together = team.units > 1;
  }
};

// Blocks of units: the columns of the first two gates, then of the others, each a panel; for all threads of a team.
static void pack_gates(i64 h, const float* w, float* out) {
#pragma omp for schedule(static)
  for (i64 unit = 0; unit < h; unit += LANES)
    for (i64 p = 0; p < h; p += 16)  // what is read together lies together
      for (i64 q = 0; q < BLOCK; q++) {
        const float* row = w + (q / LANES * h + unit + q % LANES) * h + p;
        float* to = out + unit * 4 * h + q / NR * NR * h + p * NR + q % NR;
        UNROLL for (int i = 0; i < 16; i++) to[i * NR] = row[i];
      }
}

// pointers: products of the input (steps, batch, 4 width) with both biases, which become the gates; weight (4 width,
// width), first states, room for the packed weight; results, cells (of all steps if kept), last states
extern "C" void lstm_forward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  float *given = (float*)pointers[0], *packed = (float*)pointers[4], *out = (float*)pointers[5];
  const float *weight = (float*)pointers[1], *start = (float*)pointers[2], *start_cell = (float*)pointers[3];
  float *cells = (float*)pointers[6], *last = (float*)pointers[7], *last_cell = (float*)pointers[8];
  i64 h = s.width, apart = s.batch * h;
  Team team(s);
#pragma omp parallel num_threads(team.threads())
  {
    pack_gates(h, weight, packed);
    Share share(team, s);
    alignas(64) float room[ROWS * BLOCK];
    for (i64 number = 0; number < s.steps; number++) {
      i64 t = s.step(number), earlier = number ? s.step(number - 1) : 0;
      const float *before = number ? out + earlier * apart : start;
      const float *old = !number ? start_cell : s.kept ? cells + earlier * apart : cells;
      float *now = out + t * apart, *cell = s.kept ? cells + t * apart : cells;
      for (i64 unit = share.from; unit < share.to; unit += LANES)
        for (i64 row = share.first; row < share.last; row += ROWS) {
          i64 m = least(share.last - row, ROWS);
          product(m, BLOCK, h, before + row * h, h, packed + unit * 4 * h, room, BLOCK);
          for (i64 i = 0; i < m; i++) {
            const float* y = room + i * BLOCK;
            float* x = given + (t * s.batch + row + i) * 4 * h + unit;
            i64 at = (row + i) * h + unit;
            V a = sigmoid(load(x) + load(y)), f = sigmoid(load(x + h) + load(y + LANES));
            V g = tanh(load(x + 2 * h) + load(y + 2 * LANES)), o = sigmoid(load(x + 3 * h) + load(y + 3 * LANES));
            V c = f * load(old + at) + a * g;
            store(cell + at, c);
            store(now + at, o * tanh(c));
            if (s.kept) store(x, a), store(x + h, f), store(x + 2 * h, g), store(x + 3 * h, o);
            if (number == s.steps - 1) store(last + at, load(now + at)), store(last_cell + at, c);
          }
        }
      if (share.together) {
#pragma omp barrier
      }
    }
  }
}

// pointers: gradients of the results (any strides but the last) and of the last states, gates, cells, weight, first
// cells, room for the packed weight and for gradients of states (batch, whole(width)); gradients of the gates, of the
// first states
extern "C" void lstm_backward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  const float *grads = (float*)pointers[0], *grad_last = (float*)pointers[1], *grad_cell = (float*)pointers[2];
  const float *gates = (float*)pointers[3], *cells = (float*)pointers[4], *weight = (float*)pointers[5];
  const float* start_cell = (float*)pointers[6];
  float *packed = (float*)pointers[7], *carried = (float*)pointers[8], *inputs = (float*)pointers[9];
  float *first = (float*)pointers[10], *carried_cell = (float*)pointers[11];
  i64 h = s.width, wide = whole(h), apart = s.batch * h;
  Team team(s);
#pragma omp parallel num_threads(team.threads())
  {
    pack(4 * h, h, weight, h, 1, packed);
    Share share(team, s);
    for (i64 row = share.first; row < share.last; row++)
      for (i64 unit = share.from; unit < share.to; unit += LANES) {
        store(carried + row * wide + unit, load(grad_last + row * h + unit));
        store(carried_cell + row * h + unit, load(grad_cell + row * h + unit));
      }
    for (i64 number = s.steps - 1; number >= 0; number--) {
      i64 t = s.step(number);
      const float* old = number ? cells + s.step(number - 1) * apart : start_cell;
      for (i64 row = share.first; row < share.last; row++) {
        const float* kept = gates + (t * s.batch + row) * 4 * h;
        const float* grad = grads + t * s.grad_step + row * s.grad_row;
        float* back = inputs + (t * s.batch + row) * 4 * h;
        for (i64 unit = share.from; unit < share.to; unit += LANES) {
          V a = load(kept + unit), f = load(kept + h + unit), g = load(kept + 2 * h + unit), o = load(kept + 3 * h + unit);
          V c = tanh(load(cells + t * apart + row * h + unit)), d = load(carried + row * wide + unit);
          float* carry = carried_cell + row * h + unit;
          if (s.kept) d += load(grad + unit);
          V dc = load(carry) + d * o * (1.0f - c * c);
          store(back + unit, dc * g * a * (1.0f - a));
          store(back + h + unit, dc * load(old + row * h + unit) * f * (1.0f - f));
          store(back + 2 * h + unit, dc * a * (1.0f - g * g));
          store(back + 3 * h + unit, d * c * o * (1.0f - o));
          store(carry, dc * f);
        }
      }
      if (share.together) {
#pragma omp barrier
      }
      for (i64 unit = share.from; unit < share.to; unit += NR)
        for (i64 row = share.first; row < share.last; row += ROWS)
          product(least(share.last - row, ROWS), NR, 4 * h, inputs + (t * s.batch + row) * 4 * h, 4 * h,
                  packed + unit * 4 * h, carried + row * wide + unit, wide);
    }
    for (i64 row = share.first; row < share.last; row++)
      for (i64 unit = share.from; unit < share.to; unit += LANES)
        store(first + row * h + unit, load(carried + row * wide + unit));
  }
}
