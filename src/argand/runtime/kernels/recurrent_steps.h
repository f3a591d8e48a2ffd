// What kernels of recurrent layers share: vectors, and products whose right side is packed in panels.
#pragma GCC optimize("O2", "fp-contract=fast")
#if defined(__AVX512F__)
enum { LANES = 16, MR = 8 };
#else
enum { LANES = 8, MR = 4 };
#endif
enum {
  NR = 2 * LANES,
  SC = 128,   // most products that are added up in one register: longer sums are less exact than eager's
  ROWS = 32,  // of the batch that are computed together
};
typedef float V __attribute__((vector_size(4 * LANES)));
typedef float U __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int I __attribute__((vector_size(4 * LANES)));
typedef long long i64;
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);

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

// c (m, n) = a (m, k), of any distance of rows, times packed panels; rows of `c` have room for whole panels.
static void product(i64 m, i64 n, i64 k, const float* a, i64 rows, const float* packed, float* c, i64 to) {
  for (i64 j = 0; j < n; j += NR, packed += k * NR) {
    for (i64 p = 0; p < k; p += SC) {
      i64 run = k - p < SC ? k - p : SC;
      const float* b = packed + p * NR;
      i64 i = 0;
      for (; i + MR <= m; i += MR) tile<MR>(run, a + i * rows + p, rows, b, c + i * to + j, to, p > 0);
      for (; i + MR / 2 <= m; i += MR / 2) tile<MR / 2>(run, a + i * rows + p, rows, b, c + i * to + j, to, p > 0);
      for (; i + 2 <= m; i += 2) tile<2>(run, a + i * rows + p, rows, b, c + i * to + j, to, p > 0);
      if (i < m) tile<1>(run, a + i * rows + p, rows, b, c + i * to + j, to, p > 0);
    }
  }
}

INLINE i64 whole(i64 n) { return (n + NR - 1) / NR * NR; }

// Panels of the matrix (k, n) whose element (p, q) is at w[p * down + q * across]; for all threads of a team.
static void pack(i64 k, i64 n, const float* w, i64 down, i64 across, float* out) {
#pragma omp for schedule(static)
  for (i64 j = 0; j < whole(n); j += NR)
    for (i64 p = 0; p < k; p++)
      for (i64 q = j; q < j + NR; q++) out[j * k + p * NR + q - j] = q < n ? w[p * down + q * across] : 0;
}
