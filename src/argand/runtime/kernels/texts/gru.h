// The steps of a GRU, forward and backward. What does not depend on the step before, products with the input, is
// projected by others.
#include "recurrent_steps.h"

// pointers: products of the input (steps, batch, 3 width) with their bias, weight (3 width, width), bias or zeros, first
// state, room for the packed weight, results, last state, gates to be kept (steps, batch, 4 width)
extern "C" void gru_forward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  const float *given = (float*)pointers[0], *weight = (float*)pointers[1], *bias = (float*)pointers[2];
  const float* start = (float*)pointers[3];
  float *packed = (float*)pointers[4], *out = (float*)pointers[5], *last = (float*)pointers[6], *gates = (float*)pointers[7];
  i64 h = s.width;
  Team team(s, 3);
#pragma omp parallel num_threads(team.threads())
  {
    pack_gates(3, h, weight, packed);
    Share share(team, s);
    alignas(64) float room[ROWS * 3 * NR];
    for (i64 number = 0; number < s.steps; number++) {
      i64 t = s.step(number), apart = number ? s.apart : h;
      const float* before = number ? out + s.step(number - 1) * s.along : start;
      float* now = out + t * s.along;
      for (i64 panel = share.from; panel < share.to; panel += NR)
        for (i64 row = share.first; row < share.last; row += ROWS) {
          i64 m = least(share.last - row, ROWS);
          product(m, 3 * NR, h, before + row * apart, apart, packed + panel * 3 * h, room, 3 * NR, false);
          for (i64 i = 0; i < m; i++) {
            const float *x = given + (t * s.batch + row + i) * 3 * h, *old = before + (row + i) * apart;
            float* keep = gates + (t * s.batch + row + i) * 4 * h;
            for (i64 j = panel; j < least(panel + NR, h); j += LANES) {
              const float* y = room + i * 3 * NR + j - panel;
              V r = sigmoid(load(x + j) + (load(y) + load(bias + j)));
              V z = sigmoid(load(x + h + j) + (load(y + NR) + load(bias + h + j)));
              V a = load(y + 2 * NR) + load(bias + 2 * h + j);
              V n = tanh(load(x + 2 * h + j) + r * a), state = (load(old + j) - n) * z + n;
              store(now + (row + i) * s.apart + j, state);
              if (s.kept) store(keep + j, r), store(keep + h + j, z), store(keep + 2 * h + j, n), store(keep + 3 * h + j, a);
              if (number == s.steps - 1) store(last + (row + i) * h + j, state);
            }
          }
        }
      share.wait();
    }
  }
}

// pointers: gradients of the results and of the last state, gates, results (laid out as their gradients), weight, first
// state, room for the packed weight and for gradients of states (batch, whole(width)); gradients of the products of the
// input, of those of the states, of the first state
extern "C" void gru_backward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  const float *grads = (float*)pointers[0], *grad_last = (float*)pointers[1], *gates = (float*)pointers[2];
  const float *out = (float*)pointers[3], *weight = (float*)pointers[4], *start = (float*)pointers[5];
  float *packed = (float*)pointers[6], *carried = (float*)pointers[7];
  float *inputs = (float*)pointers[8], *states = (float*)pointers[9], *first = (float*)pointers[10];
  i64 h = s.width, wide = whole(h);
  Team team(s, 3);
#pragma omp parallel num_threads(team.threads())
  {
    pack(3 * h, h, weight, packed);
    Share share(team, s);
    for (i64 row = share.first; row < share.last; row++)
      for (i64 j = share.from; j < share.to; j += LANES) store(carried + row * wide + j, load(grad_last + row * h + j));
    for (i64 number = s.steps - 1; number >= 0; number--) {
      i64 t = s.step(number), apart = number ? s.apart : h;
      const float* old = number ? out + s.step(number - 1) * s.along : start;
      for (i64 row = share.first; row < share.last; row++) {
        const float *kept = gates + (t * s.batch + row) * 4 * h, *grad = grads + t * s.along + row * s.apart;
        float *dx = inputs + (t * s.batch + row) * 3 * h, *dy = states + (t * s.batch + row) * 3 * h;
        float* carry = carried + row * wide;
        for (i64 j = share.from; j < share.to; j += LANES) {
          V r = load(kept + j), z = load(kept + h + j), n = load(kept + 2 * h + j), a = load(kept + 3 * h + j);
          V d = load(carry + j) + load(grad + j);
          V dn = d * (1.0f - z) * (1.0f - n * n), dz = d * (load(old + row * apart + j) - n) * z * (1.0f - z);
          V dr = dn * a * r * (1.0f - r);
          store(dx + j, dr), store(dx + h + j, dz), store(dx + 2 * h + j, dn);
          store(dy + j, dr), store(dy + h + j, dz), store(dy + 2 * h + j, dn * r);
          store(carry + j, d * z);
        }
        // what lies after the last unit is never read, but added to
        for (i64 j = h; share.to == h && j < wide; j += LANES) store(carry + j, V{});
      }
      share.wait();
      carry_back(share, 3 * h, states + t * s.batch * 3 * h, packed, carried, wide, true);
    }
    hand_back(share, h, carried, wide, first);
  }
}
