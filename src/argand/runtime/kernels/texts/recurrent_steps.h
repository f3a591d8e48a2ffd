// What kernels of recurrent layers share: vectors, and products whose right side is packed in panels.
#pragma GCC optimize("O2", "fp-contract=fast")
#if defined(__AVX512F__)
enum { LANES = 16, MR = 8 };
#else
enum { LANES = 8, MR = 4 };
#endif
enum {
  NR = 2 * LANES,
  SC = 128,         // most products that are added up in one register: longer sums are less exact than eager's
  ROWS = 32,        // of the batch that are computed together
  CACHE = 1 << 20,  // bytes of a weight that each thread reads as a whole in each step
  GRAIN = 1 << 17,  // terms of a step that a thread more is worth it
};
typedef float V __attribute__((vector_size(4 * LANES)));
typedef float U __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int I __attribute__((vector_size(4 * LANES)));
typedef long long i64;
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_max_threads(void);

INLINE V load(const float* p) { return *(const U*)p; }
INLINE void store(float* p, V v) { *(U*)p = v; }
#include "vector_math.h"

INLINE V sigmoid(V x) { return 1.0f / (1.0f + exp(-x)); }

template <int R> INLINE void tile(i64 k, const float* a, i64 rows, const float* b, float* c, i64 to, bool add) {
  V s[R][2];
  UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = V{};
  for (i64 p = 0; p < k; p++) {
    V b0 = *(const V*)(b + p * NR), b1 = *(const V*)(b + p * NR + LANES);
    UNROLL for (int r = 0; r < R; r++) {
      float x = a[r * rows + p];
      s[r][0] += x * b0;
      s[r][1] += x * b1;
    }
  }
  UNROLL for (int r = 0; r < R; r++) {
    float* row = c + r * to;
    store(row, add ? load(row) + s[r][0] : s[r][0]);
    store(row + LANES, add ? load(row + LANES) + s[r][1] : s[r][1]);
  }
}

// c (m, n) = a (m, k), of any distance of rows, times packed panels, or that `more`; rows of `c` have room for whole panels.
static void product(i64 m, i64 n, i64 k, const float* a, i64 rows, const float* packed, float* c, i64 to, bool more) {
  for (i64 j = 0; j < n; j += NR, packed += k * NR) {
    for (i64 p = 0; p < k; p += SC) {
      i64 run = k - p < SC ? k - p : SC, i = 0;
      bool add = more || p > 0;
      auto some = [&](auto tile_of, i64 count) {
        for (; i + count <= m; i += count) tile_of(run, a + i * rows + p, rows, packed + p * NR, c + i * to + j, to, add);
      };
      some(tile<MR>, MR);
      some(tile<MR / 2>, MR / 2);
      some(tile<2>, 2);
      some(tile<1>, 1);
    }
  }
}

INLINE i64 whole(i64 n) { return (n + NR - 1) / NR * NR; }
INLINE i64 least(i64 a, i64 b) { return a < b ? a : b; }

// Panels of the matrix w (k, n); for all threads of a team.
static void pack(i64 k, i64 n, const float* w, float* out) {
#pragma omp for schedule(static)
  for (i64 j = 0; j < n; j += NR)
    for (i64 p = 0; p < k; p++)
      for (i64 q = j; q < j + NR; q++) out[j * k + p * NR + q - j] = q < n ? w[p * n + q] : 0;
}

// Panels of the transposed matrices w (gates, h, h): those of all gates of NR units, then of the next units.
static void pack_gates(i64 gates, i64 h, const float* w, float* out) {
#pragma omp for schedule(static)
  for (i64 unit = 0; unit < h; unit += NR)
    for (i64 gate = 0; gate < gates; gate++)
      for (i64 p = 0; p < h; p += 16)  // what is read together lies together
        for (i64 q = 0; q < NR; q++) {
          const float* row = w + (gate * h + unit + q) * h + p;
          float* to = out + (unit * gates + gate * NR) * h + p * NR + q;
          UNROLL for (int i = 0; i < 16; i++) to[i * NR] = unit + q < h ? row[i] : 0;
        }
}

struct Sequence {  // numbers of a function, in order
  i64 steps, batch, width, reverse;
  i64 kept;          // forward: what the backward reads; backward: whether there are gradients of the results
  i64 along, apart;  // distances of steps and rows: of results; of their gradients
  i64 step(i64 number) const { return reverse ? steps - 1 - number : number; }
};

// Into how many parts the batch and the units are divided. Threads that compute other units of the same rows wait for
// each other once a step.
struct Team {
  i64 rows, units;
  Team(const Sequence& s, i64 gates) {
    i64 threads = omp_get_max_threads(), terms = gates * s.width * s.width, each = s.batch / MR;
    rows = terms * 4 > CACHE || each < 1 ? 1 : least(each, threads);
    units = least(threads / rows, s.batch / rows * terms / GRAIN + 1);
  }
  i64 threads() const { return rows * units; }
};

// The rows of the batch and the units, by panels, that this thread computes.
struct Share {
  i64 first, last, from, to;
  bool together;  // with other threads, which compute the other units of these rows
  Share(Team team, const Sequence& s) {
    i64 threads = omp_get_num_threads(), me = omp_get_thread_num();
    if (threads < team.threads()) team.rows = 1, team.units = threads;
    i64 high = (s.batch + team.rows - 1) / team.rows, wide = (whole(s.width) / NR + team.units - 1) / team.units * NR;
    first = least(me / team.units * high, s.batch);
    last = least(first + high, s.batch);
    from = least(me % team.units * wide, s.width);
    to = least(from + wide, s.width);
    together = team.units > 1;
  }
  void wait() const {
    if (together) {
#pragma omp barrier
    }
  }
};

// The gradients that go on to the step before: those of a step's sums, `terms` of them a row, times packed panels, or that `more`.
static void carry_back(const Share& share, i64 terms, const float* sums, const float* packed, float* carried, i64 wide, bool more) {
  for (i64 j = share.from; j < share.to; j += NR)
    for (i64 row = share.first; row < share.last; row += ROWS)
      product(least(share.last - row, ROWS), NR, terms, sums + row * terms, terms, packed + j * terms, carried + row * wide + j, wide, more);
}

// What is carried when no step is left, to rows of `h`.
static void hand_back(const Share& share, i64 h, const float* carried, i64 wide, float* first) {
  for (i64 row = share.first; row < share.last; row++)
    for (i64 j = share.from; j < share.to; j += LANES) store(first + row * h + j, load(carried + row * wide + j));
}
