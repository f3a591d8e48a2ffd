// The steps of a GRU, forward and backward: each thread takes some rows of the batch through all steps, its states and
// gates stay in its cache. What does not depend on the step before, products with the input, is projected by others.
#include "recurrent_steps.h"

// The rows of the batch that this thread computes.
struct Share {
  i64 first, last;
  Share(i64 batch) {
    i64 threads = omp_get_num_threads(), me = omp_get_thread_num(), each = (batch + threads - 1) / threads;
    first = me * each;
    last = first + each < batch ? first + each : batch;
  }
};

struct Sequence {  // numbers of both functions, in order
  i64 steps, batch, width, reverse, out_step, out_row, kept;
  i64 step(i64 number) const { return reverse ? steps - 1 - number : number; }
};

// pointers: products of the input (steps, batch, 3 width) with their bias, weight (3 width, width), bias or zeros, first
// state, room for the packed weight, results, last state, gates to be kept (steps, batch, 4 width)
extern "C" void gru_forward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  const float *given = (float*)pointers[0], *weight = (float*)pointers[1], *bias = (float*)pointers[2];
  const float* start = (float*)pointers[3];
  float *packed = (float*)pointers[4], *out = (float*)pointers[5], *last = (float*)pointers[6], *gates = (float*)pointers[7];
  i64 h = s.width, to = whole(3 * h);
#pragma omp parallel
  {
    pack(h, 3 * h, weight, 1, h, packed);
    Share share(s.batch);
    float* projected = (float*)__builtin_malloc(ROWS * to * 4);
    for (i64 row = share.first; row < share.last; row += ROWS) {
      i64 m = share.last - row < ROWS ? share.last - row : ROWS, apart = h;
      const float* before = start + row * h;
      for (i64 number = 0; number < s.steps; number++) {
        i64 t = s.step(number);
        product(m, 3 * h, h, before, apart, packed, projected, to);
        float* now = out + t * s.out_step + row * s.out_row;
        for (i64 i = 0; i < m; i++) {
          const float *x = given + (t * s.batch + row + i) * 3 * h, *y = projected + i * to, *old = before + i * apart;
          float* keep = gates + (t * s.batch + row + i) * 4 * h;
          for (i64 j = 0; j < h; j += LANES) {
            V r = sigmoid(load(x + j) + (load(y + j) + load(bias + j)));
            V z = sigmoid(load(x + h + j) + (load(y + h + j) + load(bias + h + j)));
            V a = load(y + 2 * h + j) + load(bias + 2 * h + j);
            V n = tanh(load(x + 2 * h + j) + r * a);
            store(now + i * s.out_row + j, (load(old + j) - n) * z + n);
            if (s.kept) store(keep + j, r), store(keep + h + j, z), store(keep + 2 * h + j, n), store(keep + 3 * h + j, a);
          }
        }
        before = now;
        apart = s.out_row;
      }
      for (i64 i = 0; i < m; i++) __builtin_memcpy(last + (row + i) * h, before + i * apart, h * 4);
    }
    __builtin_free(projected);
  }
}

// pointers: gradients of the results (laid out as these) and of the last state, gates, results, weight, first state,
// room for the packed weight; gradients of the products of the input, of those of the states, of the first state
extern "C" void gru_backward(void** pointers, const i64* numbers) {
  const Sequence& s = *(const Sequence*)numbers;
  const float *grads = (float*)pointers[0], *grad_last = (float*)pointers[1], *gates = (float*)pointers[2];
  const float *out = (float*)pointers[3], *weight = (float*)pointers[4], *start = (float*)pointers[5];
  float *packed = (float*)pointers[6], *inputs = (float*)pointers[7], *states = (float*)pointers[8];
  float* first = (float*)pointers[9];
  i64 h = s.width, to = whole(h);
#pragma omp parallel
  {
    pack(3 * h, h, weight, h, 1, packed);
    Share share(s.batch);
    float *projected = (float*)__builtin_malloc(2 * ROWS * to * 4), *carried = projected + ROWS * to;
    for (i64 row = share.first; row < share.last; row += ROWS) {
      i64 m = share.last - row < ROWS ? share.last - row : ROWS;
      for (i64 i = 0; i < m; i++) __builtin_memcpy(carried + i * to, grad_last + (row + i) * h, h * 4);
      for (i64 number = s.steps - 1; number >= 0; number--) {
        i64 t = s.step(number), earlier = number ? s.step(number - 1) : 0;
        const float* old = number ? out + earlier * s.out_step + row * s.out_row : start + row * h;
        i64 apart = number ? s.out_row : h, at = t * s.batch + row;
        for (i64 i = 0; i < m; i++) {
          const float *kept = gates + (at + i) * 4 * h, *grad = grads + t * s.out_step + (row + i) * s.out_row;
          float *dx = inputs + (at + i) * 3 * h, *dy = states + (at + i) * 3 * h, *carry = carried + i * to;
          for (i64 j = 0; j < h; j += LANES) {
            V r = load(kept + j), z = load(kept + h + j), n = load(kept + 2 * h + j), a = load(kept + 3 * h + j);
            V d = load(carry + j) + load(grad + j);
            V dn = d * (1.0f - z) * (1.0f - n * n), dz = d * (load(old + i * apart + j) - n) * z * (1.0f - z);
            V dr = dn * a * r * (1.0f - r);
            store(dx + j, dr), store(dx + h + j, dz), store(dx + 2 * h + j, dn);
            store(dy + j, dr), store(dy + h + j, dz), store(dy + 2 * h + j, dn * r);
            store(carry + j, d * z);
          }
        }
        product(m, h, 3 * h, states + at * 3 * h, 3 * h, packed, projected, to);
        for (i64 i = 0; i < m; i++)
          for (i64 j = 0; j < h; j += LANES) store(carried + i * to + j, load(carried + i * to + j) + load(projected + i * to + j));
      }
      for (i64 i = 0; i < m; i++) __builtin_memcpy(first + (row + i) * h, carried + i * to, h * 4);
    }
    __builtin_free(projected);
  }
}
