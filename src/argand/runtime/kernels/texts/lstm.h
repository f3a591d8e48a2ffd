// The steps of an LSTM, forward and backward. Products with the input are computed by others.
#include "recurrent_steps.h"

// pointers: products of the input (steps, batch, 4 width) with both biases, which become the gates; weight (4 width,
// width), first states, room for the packed weight; results, cells (of all steps if kept), last states
extern "C" void lstm_forward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  float *given = (float*)pointers[0], *packed = (float*)pointers[4], *out = (float*)pointers[5];
  const float *weight = (float*)pointers[1], *start = (float*)pointers[2], *start_cell = (float*)pointers[3];
  float *cells = (float*)pointers[6], *last = (float*)pointers[7], *last_cell = (float*)pointers[8];
  i64 h = s.width, whole_step = s.batch * h;
  Team team(s, 4);
#pragma omp parallel num_threads(team.threads())
  {
    pack_gates(4, h, weight, packed);
    Share share(team, s);
    alignas(64) float room[ROWS * 4 * NR];
    for (i64 number = 0; number < s.steps; number++) {
      i64 t = s.step(number), earlier = number ? s.step(number - 1) : 0;
      const float* before = number ? out + earlier * whole_step : start;
      const float* old = !number ? start_cell : s.kept ? cells + earlier * whole_step : cells;
      float *now = out + t * whole_step, *cell = s.kept ? cells + t * whole_step : cells;
      for (i64 panel = share.from; panel < share.to; panel += NR)
        for (i64 row = share.first; row < share.last; row += ROWS) {
          i64 m = least(share.last - row, ROWS);
          product(m, 4 * NR, h, before + row * h, h, packed + panel * 4 * h, room, 4 * NR, false);
          for (i64 i = 0; i < m; i++)
            for (i64 j = panel; j < least(panel + NR, h); j += LANES) {
              const float* y = room + i * 4 * NR + j - panel;
              float* x = given + (t * s.batch + row + i) * 4 * h + j;
              i64 at = (row + i) * h + j;
              V a = sigmoid(load(x) + load(y)), f = sigmoid(load(x + h) + load(y + NR));
              V g = tanh(load(x + 2 * h) + load(y + 2 * NR)), o = sigmoid(load(x + 3 * h) + load(y + 3 * NR));
              V c = f * load(old + at) + a * g;
              store(cell + at, c);
              store(now + at, o * tanh(c));
              if (s.kept) store(x, a), store(x + h, f), store(x + 2 * h, g), store(x + 3 * h, o);
              if (number == s.steps - 1) store(last + at, load(now + at)), store(last_cell + at, c);
            }
        }
      share.wait();
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
  i64 h = s.width, wide = whole(h), whole_step = s.batch * h;
  Team team(s, 4);
#pragma omp parallel num_threads(team.threads())
  {
    pack(4 * h, h, weight, packed);
    Share share(team, s);
    for (i64 row = share.first; row < share.last; row++)
      for (i64 j = share.from; j < share.to; j += LANES) {
        store(carried + row * wide + j, load(grad_last + row * h + j));
        store(carried_cell + row * h + j, load(grad_cell + row * h + j));
      }
    for (i64 number = s.steps - 1; number >= 0; number--) {
      i64 t = s.step(number);
      const float* old = number ? cells + s.step(number - 1) * whole_step : start_cell;
      for (i64 row = share.first; row < share.last; row++) {
        const float *kept = gates + (t * s.batch + row) * 4 * h, *grad = grads + t * s.along + row * s.apart;
        float* back = inputs + (t * s.batch + row) * 4 * h;
        for (i64 j = share.from; j < share.to; j += LANES) {
          V a = load(kept + j), f = load(kept + h + j), g = load(kept + 2 * h + j), o = load(kept + 3 * h + j);
          V c = tanh(load(cells + t * whole_step + row * h + j)), d = load(carried + row * wide + j);
          float* carry = carried_cell + row * h + j;
          if (s.kept) d += load(grad + j);
          V dc = load(carry) + d * o * (1.0f - c * c);
          store(back + j, dc * g * a * (1.0f - a));
          store(back + h + j, dc * load(old + row * h + j) * f * (1.0f - f));
          store(back + 2 * h + j, dc * a * (1.0f - g * g));
          store(back + 3 * h + j, d * c * o * (1.0f - o));
          store(carry, dc * f);
        }
      }
      share.wait();
      carry_back(share, 4 * h, inputs + t * s.batch * 4 * h, packed, carried, wide, false);
    }
    hand_back(share, h, carried, wide, first);
  }
}
