// Products of float matrices with weights of 8 bits: `weight_only` multiplies floats, `dynamic` makes integers of 8 bits
// of each row first, and adds up in 32 bits, which is exact. Bias, activation and addition are computed of the sums.
//
// Weights lie in panels of NR columns: k by k for floats, in groups of 4 k a column for integers (there with 128 added,
// so that they are positive). Each thread takes some panels through all rows, which lie in blocks of up to MR.
#pragma GCC optimize("O2", "fp-contract=fast")
#if defined(__AVX512F__)
enum { LANES = 16, MR = 8 };
#elif defined(__AVX2__)
enum { LANES = 8, MR = 4 };
#else
enum { LANES = 4, MR = 4 };
#endif
enum {
  NR = 32,        // columns of a panel
  STEP = 2 * LANES,  // columns of a tile
  SC = 256,       // most products that are added up in one register: longer sums are less exact than eager's
  ROOM = 1 << 18,   // bytes of rows that are taken through a panel one after the other
  CHUNK = 1 << 22,  // bytes of rows that are collected at a time
};
typedef float V __attribute__((vector_size(4 * LANES)));
typedef float U __attribute__((vector_size(4 * LANES), aligned(4)));
typedef int I __attribute__((vector_size(4 * LANES)));
typedef signed char C __attribute__((vector_size(LANES), aligned(1)));
typedef unsigned short H __attribute__((vector_size(2 * LANES), aligned(2)));
typedef long long i64;
#if defined(__AVX512F__)
#define REGISTER "v"
#else
#define REGISTER "x"
#endif
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);

struct bf16 {
  unsigned short bits;
};
INLINE float number(float x) { return x; }
INLINE float number(bf16 x) {
  unsigned b = (unsigned)x.bits << 16;
  float f;
  __builtin_memcpy(&f, &b, 4);
  return f;
}
INLINE I integers(const signed char* p) {  // (of GCC's own conversion a number at a time is made)
#if defined(__AVX2__)
  I wide;
  __asm__("vpmovsxbd %1, %0" : "=" REGISTER(wide) : "m"(*(const C*)p));
  return wide;
#else
  return __builtin_convertvector(*(const C*)p, I);
#endif
}
INLINE V floats(const signed char* p) { return __builtin_convertvector(integers(p), V); }

INLINE V load(const float* p) { return *(const U*)p; }
INLINE V load(const bf16* p) { return (V)(__builtin_convertvector(*(const H*)p, I) << 16); }
INLINE void store(float* p, V v) { *(U*)p = v; }
INLINE void store(bf16* p, V v) {  // the nearest, of two the even one
  I b = (I)v;
  b = ((b + 0x7fff + ((b >> 16) & 1)) >> 16) & 0xffff;
  I mask = v == v;
  *(H*)p = __builtin_convertvector((mask & b) | (~mask & 0x7fc0), H);
}

// Up to LANES numbers, whose place may be the last before memory ends.
template <class T> INLINE V load(const T* p, i64 width) {
  if (width >= LANES) return load(p);
  T some[LANES] = {};
  for (i64 q = 0; q < width; q++) some[q] = p[q];
  return load(some);
}
template <class T> INLINE void store(T* p, V v, i64 width) {
  if (width >= LANES) return store(p, v);
  T some[LANES];
  store(some, v);
  for (i64 q = 0; q < width; q++) p[q] = some[q];
}

// ------------------------------------------------------------------------------------------------- what follows

#include "vector_math.h"

INLINE V erf(V x) {  // 1 - 2^(-a Q(a)) for a = |x|, which is 1 from 3.93 on
  V a = magnitude(x);
  a = select(a > 3.93f, V{} + 3.93f, a);
  V p = V{} - 1.335392661e-5f;
  p = p * a + 1.697201441e-4f;
  p = p * a - 9.129895345e-4f;
  p = p * a + 2.405010574e-3f;
  p = p * a - 2.314011940e-4f;
  p = p * a - 2.763203092e-2f;
  p = p * a + 1.482770665e-1f;
  p = p * a + 9.184476253e-1f;
  p = p * a + 1.627907035f;
  V y = 1.0f - exp(-0.693147181f * a * p);
  V near = x * (1.128379167f - x * x * (0.376126389f - x * x * 0.112837917f));
  return select(a < 0.125f, near, with_sign(y, x));
}

enum { NONE, RELU, SILU, GELU, GELU_TANH };

INLINE V activated(V x, i64 which) {  // as eager's: what is no number stays so
  switch (which) {
    case RELU: return select(x < 0.0f, V{}, x);
    case SILU: return x / (1.0f + exp(-x));
    case GELU: return 0.5f * x * (1.0f + erf(x * 0.707106781f));
    case GELU_TANH: return 0.5f * x * (1.0f + tanh(0.797884561f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

// ------------------------------------------------------------------------------------------------- arguments

struct Numbers {
  i64 m, n, k, x_row, other_row, out_row, has_bias, has_other, activation;
  i64 panels() const { return (n + NR - 1) / NR; }
};

template <class T> struct Result {
  const Numbers& s;
  const T *bias, *other;
  T* out;
  // Sums of columns `j` to `j + STEP` of a row.
  void row(i64 i, i64 j, V* sums) const {
    UNROLL for (int h = 0; h < 2; h++, j += LANES) {
      i64 width = s.n - j;
      if (width <= 0) return;
      V v = sums[h];
      if (s.has_bias) v += load(bias + j, width);
      v = activated(v, s.activation);
      if (s.has_other) v += load(other + i * s.other_row + j, width);
      store(out + i * s.out_row + j, v, width);
    }
  }
};

// ------------------------------------------------------------------------------------------------- floats

// R rows of a block lie k by k.
template <int R> INLINE void sums_of(i64 k, const float* x, const signed char* w, V (*total)[2]) {
  enum { AT_ONCE = R == 1 ? 4 : R == 2 ? 2 : 1 };  // so that additions need not wait for each other
  UNROLL for (int r = 0; r < R; r++) total[r][0] = total[r][1] = V{};
  for (i64 first = 0; first < k; first += SC) {
    i64 last = k - first < SC ? k : first + SC, p = first;
    V sum[AT_ONCE][R][2];
    UNROLL for (int u = 0; u < AT_ONCE; u++) UNROLL for (int r = 0; r < R; r++) sum[u][r][0] = sum[u][r][1] = V{};
    for (; p + AT_ONCE <= last; p += AT_ONCE) {
      UNROLL for (int u = 0; u < AT_ONCE; u++) {
        const signed char* b = w + (p + u) * NR;
        V b0 = floats(b), b1 = floats(b + LANES);
        UNROLL for (int r = 0; r < R; r++) {
          float a = x[(p + u) * R + r];
          sum[u][r][0] += a * b0;
          sum[u][r][1] += a * b1;
        }
      }
    }
    for (; p < last; p++) {
      const signed char* b = w + p * NR;
      V b0 = floats(b), b1 = floats(b + LANES);
      UNROLL for (int r = 0; r < R; r++) sum[0][r][0] += x[p * R + r] * b0, sum[0][r][1] += x[p * R + r] * b1;
    }
    UNROLL for (int u = 0; u < AT_ONCE; u++)
      UNROLL for (int r = 0; r < R; r++) total[r][0] += sum[u][r][0], total[r][1] += sum[u][r][1];
  }
}

template <class T> struct Floats {
  typedef float Cell;
  const Numbers& s;
  const T* x;
  i64 depth() const { return s.k; }
  template <int R> void collect(i64 i, Cell* to) const {
    const T* from = x + i * s.x_row;
    i64 p = 0;
    for (; p + LANES <= s.k; p += LANES)
      UNROLL for (int r = 0; r < R; r++) {
        V v = load(from + r * s.x_row + p);
        if (R == 1) store(to + p, v);
        else UNROLL for (int q = 0; q < LANES; q++) to[(p + q) * R + r] = v[q];
      }
    for (; p < s.k; p++)
      UNROLL for (int r = 0; r < R; r++) to[p * R + r] = number(from[r * s.x_row + p]);
  }
  template <int R> void sums(i64, const Cell* block, const signed char* w, const float* scales, V (*total)[2]) const {
    sums_of<R>(s.k, block, w, total);
    UNROLL for (int h = 0; h < 2; h++) {
      V scale = *(const U*)(scales + h * LANES);
      UNROLL for (int r = 0; r < R; r++) total[r][h] *= scale;
    }
  }
  const signed char* tile(const signed char* panel, i64 j) const { return panel + j; }
};

// ------------------------------------------------------------------------------------------------- integers

#if defined(VNNI)
typedef int Cell8;  // four numbers
enum { CELLS = 1 };
#if defined(__AVX512F__)
#define DOT "vpdpbusd %2, %1, %0"
#else
#define DOT "%{vex%} vpdpbusd %2, %1, %0"
#endif
INLINE void add_products(I& sum, I w, I x) { __asm__(DOT : "+" REGISTER(sum) : REGISTER(w), REGISTER(x)); }
#elif defined(__AVX2__)
typedef short Cell8;
enum { CELLS = 4 };
typedef int I8 __attribute__((vector_size(32)));
typedef short S16 __attribute__((vector_size(32)));
typedef unsigned char B16 __attribute__((vector_size(16), aligned(1)));
#else
typedef signed char Cell8;
enum { CELLS = 4 };
#endif

// R rows of a block lie group by group of four k; the panel as well.
template <int R> INLINE void sums_of(i64 groups, const Cell8* x, const unsigned char* w, I (*total)[2]) {
#if defined(VNNI)
  enum { AT_ONCE = R == 1 ? 4 : R == 2 ? 2 : 1 };
  I sum[AT_ONCE][R][2];
  UNROLL for (int u = 0; u < AT_ONCE; u++) UNROLL for (int r = 0; r < R; r++) sum[u][r][0] = sum[u][r][1] = I{};
  i64 g = 0;
  for (; g + AT_ONCE <= groups; g += AT_ONCE) {
    UNROLL for (int u = 0; u < AT_ONCE; u++) {
      I b[2];
      __builtin_memcpy(b, w + (g + u) * 4 * NR, sizeof(b));
      UNROLL for (int r = 0; r < R; r++) {
        I a = I{} + x[(g + u) * R + r];
        add_products(sum[u][r][0], b[0], a);
        add_products(sum[u][r][1], b[1], a);
      }
    }
  }
  for (; g < groups; g++) {
    I b[2];
    __builtin_memcpy(b, w + g * 4 * NR, sizeof(b));
    UNROLL for (int r = 0; r < R; r++) {
      I a = I{} + x[g * R + r];
      add_products(sum[0][r][0], b[0], a);
      add_products(sum[0][r][1], b[1], a);
    }
  }
  UNROLL for (int r = 0; r < R; r++) UNROLL for (int h = 0; h < 2; h++) {
    total[r][h] = sum[0][r][h];
    UNROLL for (int u = 1; u < AT_ONCE; u++) total[r][h] += sum[u][r][h];
  }
#elif defined(__AVX2__)
  enum { PARTS = STEP / 8 };  // of 8 columns each
  for (int part = 0; part < PARTS; part++) {
    I8 sum[R][2];  // of four columns two sums each
    UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = I8{};
    for (i64 g = 0; g < groups; g++) {
      const unsigned char* b = w + g * 4 * NR + part * 32;
      S16 b0, b1;
      __asm__("vpmovzxbw %1, %0" : "=" REGISTER(b0) : "m"(*(const B16*)b));
      __asm__("vpmovzxbw %1, %0" : "=" REGISTER(b1) : "m"(*(const B16*)(b + 16)));
      UNROLL for (int r = 0; r < R; r++) {
        long long four;
        __builtin_memcpy(&four, x + (g * R + r) * 4, 8);
        S16 a = (S16)(long long __attribute__((vector_size(32)))){four, four, four, four};
        sum[r][0] += (I8)__builtin_ia32_pmaddwd256(b0, a);
        sum[r][1] += (I8)__builtin_ia32_pmaddwd256(b1, a);
      }
    }
    UNROLL for (int r = 0; r < R; r++)
      for (int q = 0; q < 8; q++) ((int*)total[r])[part * 8 + q] = sum[r][q / 4][q % 4 * 2] + sum[r][q / 4][q % 4 * 2 + 1];
  }
#else
  int sum[R][STEP] = {};
  for (i64 g = 0; g < groups; g++)
    for (int r = 0; r < R; r++)
      for (int q = 0; q < STEP; q++)
        for (int p = 0; p < 4; p++) sum[r][q] += w[g * 4 * NR + q * 4 + p] * x[(g * R + r) * 4 + p];
  __builtin_memcpy(total, sum, sizeof(sum));
#endif
}

template <class T> struct Integers {
  typedef Cell8 Cell;
  const Numbers& s;
  const T* x;
  float* row_scales;
  int* row_sums;
  i64 groups() const { return (s.k + 3) / 4; }
  i64 depth() const { return groups() * CELLS; }
  // A row with an infinity or what is no number has a scale that is none either, and so are its results.
  template <int R> void collect(i64 i, Cell* to) const {
    for (int r = 0; r < R; r++) {
      const T* from = x + (i + r) * s.x_row;
      V most = {}, wrong = {};
      for (i64 p = 0; p < s.k; p += LANES) {
        V v = load(from + p, s.k - p), a = magnitude(v);
        most = select(a > most, a, most);
        wrong += v - v;
      }
      float largest = 0, odd = 0;
      for (int q = 0; q < LANES; q++) largest = most[q] > largest ? most[q] : largest, odd += wrong[q];
      bool whole = odd == 0.0f;
      float scale = largest / 127.0f;
      scale = scale < 0x1p-120f ? 0x1p-120f : scale;
      float inverse = whole ? 1.0f / scale : 0.0f;
      I sum = {};
      for (i64 p = 0; p < groups() * 4; p += LANES) {
        V v = (p < s.k ? load(from + p, s.k - p) : V{}) * inverse;
        v = select(v > 127.0f, V{} + 127.0f, select(v < -127.0f, V{} - 127.0f, v));
        I near = (I)(v + 12582912.0f) - 0x4b400000;  // of two integers the even one
        near = near & (V{} + inverse != 0.0f);
        sum += near;
        put<R>(near, to + (p / 4 * R + r) * CELLS, groups() - p / 4);
      }
      int total = 0;
      for (int q = 0; q < LANES; q++) total += sum[q];
      row_scales[i + r] = whole ? scale : __builtin_nanf("");
      row_sums[i + r] = total;
    }
  }
  // Groups of four numbers, R groups apart.
  template <int R> INLINE void put(I numbers, Cell* to, i64 groups) {
#if defined(VNNI)
    C bytes = __builtin_convertvector(numbers, C);
    int four[LANES / 4];
    __builtin_memcpy(four, &bytes, LANES);
    UNROLL for (int g = 0; g < LANES / 4; g++) if (g < groups) to[g * R] = four[g];
#else
    UNROLL for (int g = 0; g < LANES / 4; g++)
      if (g < groups) UNROLL for (int p = 0; p < 4; p++) to[g * R * 4 + p] = (Cell)numbers[g * 4 + p];
#endif
  }
  template <int R> void sums(i64 i, const Cell* block, const signed char* w, const float* scales, V (*total)[2]) const {
    I exact[R][2];
    sums_of<R>(groups(), block, (const unsigned char*)w, exact);
    UNROLL for (int h = 0; h < 2; h++) {
      V scale = *(const U*)(scales + h * LANES);
      UNROLL for (int r = 0; r < R; r++) {
        I sum = exact[r][h] - 128 * row_sums[i + r];
        total[r][h] = __builtin_convertvector(sum, V) * (scale * row_scales[i + r]);
      }
    }
  }
  const signed char* tile(const signed char* panel, i64 j) const { return panel + 4 * j; }
};

// ------------------------------------------------------------------------------------------------- all rows

static __thread char* kept_room;
static __thread i64 kept_bytes;

static char* room_of(i64 bytes) {  // which stays with the thread
  if (bytes > kept_bytes) {
    __builtin_free(kept_room);
    kept_room = (char*)__builtin_malloc(bytes + bytes / 2 + 64);
    kept_bytes = bytes + bytes / 2;
  }
  return kept_room + (64 - (i64)kept_room % 64) % 64;
}

template <int R, class Left, class T>
static __attribute__((noinline)) void tiles(
    const Left& left, i64 i, const typename Left::Cell* block, const signed char* panel, i64 j, const float* scales,
    const Result<T>& to) {
  for (i64 q = 0; q < NR && j + q < to.s.n; q += STEP) {
    V total[R][2];
    left.template sums<R>(i, block, left.tile(panel, q), scales + j + q, total);
    for (int r = 0; r < R; r++) to.row(i + r, j + q, total[r]);
  }
}

// Calls `f` with each block of rows between two.
template <class F> INLINE void blocks(i64 first, i64 last, F f) {
  i64 i = first;
  for (; i + 8 <= last && MR >= 8; i += 8) f(i, 8);
  for (; i + 4 <= last; i += 4) f(i, 4);
  for (; i + 2 <= last; i += 2) f(i, 2);
  if (i < last) f(i, 1);
}

template <class Left, class T>
static void multiply(const Numbers& s, const Left& left, typename Left::Cell* rows, i64 panel_bytes,
                     const signed char* weight, const float* scales, const Result<T>& to) {
  i64 depth = left.depth(), bytes = depth * (i64)sizeof(typename Left::Cell);
  i64 many = ROOM / (bytes + 1) / MR * MR;
  many = many < MR ? MR : many;
#pragma omp parallel
  {
    i64 me = omp_get_thread_num(), threads = omp_get_num_threads();
    i64 share = ((s.m + threads - 1) / threads + MR - 1) / MR * MR;
    blocks(me * share < s.m ? me * share : s.m, (me + 1) * share < s.m ? (me + 1) * share : s.m, [&](i64 i, int r) {
      auto* block = rows + i * depth;
      if (MR >= 8 && r == 8) left.template collect<MR>(i, block);
      else if (r == 4) left.template collect<4>(i, block);
      else if (r == 2) left.template collect<2>(i, block);
      else left.template collect<1>(i, block);
    });
#pragma omp barrier
    i64 each = (s.panels() + threads - 1) / threads;
    i64 begin = me * each, end = begin + each < s.panels() ? begin + each : s.panels();
    for (i64 first = 0; first < s.m; first += many) {
      i64 last = first + many < s.m ? first + many : s.m;
      for (i64 panel = begin; panel < end; panel++) {
        const signed char* w = weight + panel * panel_bytes;
        blocks(first, last, [&](i64 i, int r) {
          const auto* block = rows + i * depth;
          if (MR >= 8 && r == 8) tiles<MR>(left, i, block, w, panel * NR, scales, to);
          else if (r == 4) tiles<4>(left, i, block, w, panel * NR, scales, to);
          else if (r == 2) tiles<2>(left, i, block, w, panel * NR, scales, to);
          else tiles<1>(left, i, block, w, panel * NR, scales, to);
        });
      }
    }
  }
}

// Calls `f` with pointers and numbers of some rows at a time, for which `bytes` a row are room enough.
template <class T, class F> INLINE void runs(void** pointers, Numbers s, i64 bytes, F f) {
  i64 all = s.m, many = CHUNK / bytes / MR * MR;
  many = many < MR ? MR : many;
  for (i64 i = 0; i < all; i += many) {
    s.m = all - i < many ? all - i : many;
    Result<T> to{s, (T*)pointers[3], (T*)pointers[4] + i * s.other_row, (T*)pointers[5] + i * s.out_row};
    f(s, (T*)pointers[0] + i * s.x_row, to);
  }
}

template <class T> static void weight_only(void** pointers, const Numbers& all) {
  runs<T>(pointers, all, all.k * 4, [&](const Numbers& s, const T* x, const Result<T>& to) {
    float* rows = (float*)room_of(s.m * s.k * 4);
    multiply(s, Floats<T>{s, x}, rows, s.k * NR, (signed char*)pointers[1], (float*)pointers[2], to);
  });
}

template <class T> static void dynamic(void** pointers, const Numbers& all) {
  i64 bytes = Integers<T>{all}.depth() * (i64)sizeof(Cell8) + 8;
  runs<T>(pointers, all, bytes, [&](const Numbers& s, const T* x, const Result<T>& to) {
    char* room = room_of(s.m * bytes + 64);
    Integers<T> left{s, x, (float*)room, (int*)room + s.m};
    Cell8* rows = (Cell8*)(room + (8 * s.m + 63) / 64 * 64);
    multiply(s, left, rows, left.groups() * 4 * NR, (signed char*)pointers[1], (float*)pointers[2], to);
  });
}

// pointers: rows, packed weight, its scales, bias, what is added, result; where there are no such, any tensor
extern "C" void weight_only_float32(void** pointers, const i64* numbers) {
  weight_only<float>(pointers, *(const Numbers*)numbers);
}
extern "C" void weight_only_bfloat16(void** pointers, const i64* numbers) {
  weight_only<bf16>(pointers, *(const Numbers*)numbers);
}
extern "C" void dynamic_float32(void** pointers, const i64* numbers) {
  dynamic<float>(pointers, *(const Numbers*)numbers);
}
extern "C" void dynamic_bfloat16(void** pointers, const i64* numbers) {
  dynamic<bf16>(pointers, *(const Numbers*)numbers);
}
