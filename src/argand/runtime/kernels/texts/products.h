// Products of float matrices for processors with AVX-512, of which torch's own libraries use a part only.
//
// A tile of MR x NR results stays in registers over a run of k; its right operand is packed, in panels of NR columns
// that lie in the order in which tiles read them. Each thread computes a block of the result by itself.
#pragma GCC optimize("O2", "fp-contract=fast")
typedef float V __attribute__((vector_size(64)));
typedef float U __attribute__((vector_size(64), aligned(4)));
typedef long long i64;
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#define SHUFFLE __builtin_shufflevector

enum {
  MR = 14,    // 28 registers of results
  NR = 32,
  PR = 16,    // rows of a packed panel of the left operand
  KC = 512,   // longest run of k that is packed
  SC = 128,   // most products that are added up in one register: longer sums are less exact than eager's
  NC = 512,   // columns of the right operand that are packed at a time: half of the second level of cache
};

// The first `count` of 16 numbers (none, all): what is masked is not touched in memory.
INLINE unsigned short first(i64 count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (1 << count) - 1; }
INLINE V load_part(const float* p, unsigned short mask, V other) { return __builtin_ia32_loadups512_mask(p, other, mask); }
INLINE void store_part(float* p, V v, unsigned short mask) { __builtin_ia32_storeups512_mask(p, v, mask); }

static __thread float packed_left[PR * KC] __attribute__((aligned(64)));
static __thread float packed_right[KC * NC] __attribute__((aligned(64)));

struct Matrix {  // a[i][j] is at data + i * rows + j * columns
  const float* data;
  i64 rows, columns;
  Matrix at(i64 i, i64 j) const { return {data + i * rows + j * columns, rows, columns}; }
};

struct Gathered {  // b[p][j] is at data + down[p] + across[j]
  const float* data;
  const int *down, *across;
  Gathered at(i64 p, i64 j) const { return {data, down + p, across + j}; }
};

// Row p of the right operand is what the points of a signal read by one place of a window: place p % taps of channel
// p / taps. Beyond the ends of the signal lie zeros.
struct Signal {
  const float* data;
  i64 channel, point, length;       // distances of channels and of points, points of the signal
  i64 taps, apart, step, before;    // places of a window, how far apart they and the windows are, zeros before the signal
  i64 p, j;                         // row and column where the operand begins
  Signal at(i64 row, i64 column) const {
    Signal of = *this;
    of.p += row, of.j += column;
    return of;
  }
};

struct Result {
  float* data;
  i64 rows;
  const float* bias;  // one number a column, or null
  bool add;           // to what is there
  const float* across = nullptr;  // one number a row, or null
  Result at(i64 i, i64 j) const {
    return {data + i * rows + j, rows, bias ? bias + j : bias, add, across ? across + i : across};
  }
};

// R x NR results of a short run of k, of which `width` columns are stored. A packed left operand lies by columns of PR.
template <int R, bool PACKED>
INLINE void short_tile(i64 k, Matrix left, const float* __restrict right, Result to, i64 width) {
  V sum[R][2];
  UNROLL for (int r = 0; r < R; r++) sum[r][0] = sum[r][1] = V{};
  const float* __restrict a = left.data;
  for (i64 p = 0; p < k; p++) {
    __builtin_prefetch(right + (p + 12) * NR), __builtin_prefetch(right + (p + 12) * NR + 16);
    V b0 = *(const V*)(right + p * NR), b1 = *(const V*)(right + p * NR + 16);
    UNROLL for (int r = 0; r < R; r++) {
      float x = PACKED ? a[p * PR + r] : a[r * left.rows + p];
      sum[r][0] += x * b0;
      sum[r][1] += x * b1;
    }
  }
  if (width < NR) {
    unsigned short low = first(width), high = first(width - 16);
    V more0 = -V{}, more1 = more0;
    if (to.bias && !to.add) more0 = load_part(to.bias, low, more0), more1 = load_part(to.bias + 16, high, more1);
    UNROLL for (int r = 0; r < R; r++) {
      float* c = to.data + r * to.rows;
      if (to.add) more0 = load_part(c, low, more0), more1 = load_part(c + 16, high, more1);
      else if (to.across) more0 = more1 = V{} + to.across[r];
      store_part(c, sum[r][0] + more0, low);
      store_part(c + 16, sum[r][1] + more1, high);
    }
    return;
  }
  V more0 = -V{}, more1 = more0;  // adds nothing, to -0.0 either
  if (to.bias && !to.add) more0 = *(const U*)to.bias, more1 = *(const U*)(to.bias + 16);
  UNROLL for (int r = 0; r < R; r++) {
    float* c = to.data + r * to.rows;
    if (to.add) more0 = *(const U*)c, more1 = *(const U*)(c + 16);
    else if (to.across) more0 = more1 = V{} + to.across[r];
    *(U*)c = sum[r][0] + more0;
    *(U*)(c + 16) = sum[r][1] + more1;
  }
}

template <int R, bool PACKED> INLINE void tile(i64 k, Matrix left, const float* __restrict right, Result to, i64 width) {
  i64 runs = (k + SC - 1) / SC, step = (k + runs - 1) / runs;
  for (i64 p = 0; p < k; p += step) {
    short_tile<R, PACKED>(k - p < step ? k - p : step, left, right + p * NR, to, width);
    left.data += PACKED ? step * PR : step;
    to.add = true;
  }
}

template <int R, bool PACKED>
static __attribute__((noinline)) void tiles(i64 n, i64 k, Matrix left, const float* right, Result to) {
  i64 j = 0;
  for (; j + NR <= n; j += NR) tile<R, PACKED>(k, left, right + j * k, to.at(0, j), NR);
  if (j < n) tile<R, PACKED>(k, left, right + j * k, to.at(0, j), n - j);
}

// At most MR rows of results.
template <bool PACKED> static void rows_of(i64 m, i64 n, i64 k, Matrix left, const float* right, Result to) {
  if (m == MR) return tiles<MR, PACKED>(n, k, left, right, to);
  i64 i = 0;
  auto from = [&] { return PACKED ? Matrix{left.data + i, 0, 0} : left.at(i, 0); };
  if (m & 8) tiles<8, PACKED>(n, k, from(), right, to.at(i, 0)), i += 8;
  if (m & 4) tiles<4, PACKED>(n, k, from(), right, to.at(i, 0)), i += 4;
  if (m & 2) tiles<2, PACKED>(n, k, from(), right, to.at(i, 0)), i += 2;
  if (m & 1) tiles<1, PACKED>(n, k, from(), right, to.at(i, 0));
}

// 16 rows of 16 numbers, `from` apart, become columns; where there are fewer, the others are zeros.
template <bool PART>
static __attribute__((noinline)) void transpose(const float* s, i64 from, float* d, i64 to, i64 rows, i64 columns) {
  V a[16], b[16];
  UNROLL for (int i = 0; i < 16; i++) {
    if (PART) a[i] = load_part(i < rows ? s + i * from : s, i < rows ? first(columns) : 0, V{});
    else a[i] = *(const U*)(s + i * from);
  }
  UNROLL for (int i = 0; i < 16; i += 2) {
    b[i] = SHUFFLE(a[i], a[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    b[i + 1] = SHUFFLE(a[i], a[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  UNROLL for (int i = 0; i < 16; i += 4) {  // then a[i + j] has, in its group q of four, column 4 q + j of rows i to i + 3
    UNROLL for (int h = 0; h < 2; h++) {
      a[i + 2 * h] = SHUFFLE(b[i + h], b[i + h + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      a[i + 2 * h + 1] = SHUFFLE(b[i + h], b[i + h + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
  UNROLL for (int j = 0; j < 4; j++) {
    UNROLL for (int h = 0; h < 2; h++) {
      V top = h ? SHUFFLE(a[j], a[4 + j], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)
                : SHUFFLE(a[j], a[4 + j], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
      V low = h ? SHUFFLE(a[8 + j], a[12 + j], 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31)
                : SHUFFLE(a[8 + j], a[12 + j], 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
      float* out = d + (8 * h + j) * to;
      *(U*)out = SHUFFLE(top, low, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
      *(U*)(out + 4 * to) = SHUFFLE(top, low, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
  }
}

// One panel: columns `j` to `j + width` of `b`. Up to 15 rows after it may be written to.
static void pack_panel(Matrix b, i64 k, i64 j, i64 width, float* out) {
  if (b.rows == 1) {
    for (i64 p = 0; p < k; p += 16)
      for (int h = 0; h < NR; h += 16) {
        const float* s = b.at(p, h < width ? j + h : j).data;
        bool part = k - p < 16 || width - h < 16;
        (part ? transpose<true> : transpose<false>)(s, b.columns, out + p * NR + h, NR, width - h, k - p);
      }
    return;
  }
  unsigned short low = first(width), high = first(width - 16);
  for (i64 p = 0; p < k; p++) {
    float *d = out + p * NR, *s = (float*)b.at(p, j).data;
    if (b.columns == 1) *(V*)d = load_part(s, low, V{}), *(V*)(d + 16) = load_part(s + 16, high, V{});
    else for (i64 q = 0; q < NR; q++) d[q] = q < width ? s[q * b.columns] : 0;
  }
}

static void pack_right(Matrix b, i64 k, i64 n, float* out) {
  i64 j = 0;
  for (; b.columns == 1 && j + NR <= n; ) {  // several panels at once: what is read lies in longer pieces
    i64 wide = (n - j) / NR < 8 ? (n - j) / NR : 8;
    for (i64 p = 0; p < k; p++) {
      const float* s = b.at(p, j).data;
      float* d = out + j * k + p * NR;
      for (i64 q = 0; q < wide; q++, s += NR, d += k * NR) {
        if (p + 8 < k) __builtin_prefetch(s + 8 * b.rows), __builtin_prefetch(s + 8 * b.rows + 16);
        V one = *(const U*)s, two = *(const U*)(s + 16);
        *(V*)d = one;
        *(V*)(d + 16) = two;
      }
    }
    j += wide * NR;
  }
  for (; j < n; j += NR) pack_panel(b, k, j, n - j < NR ? n - j : NR, out + j * k);
}

static void pack_right(Gathered b, i64 k, i64 n, float* out) {
  for (i64 j = 0; j < n; j += NR, out += k * NR) {
    i64 width = n - j < NR ? n - j : NR;
    for (i64 p = 0; p < k; p++) {
      const float* s = b.data + b.down[p];
      float* d = out + p * NR;
      if (width == NR) {
#pragma GCC unroll 8
        for (i64 q = 0; q < NR; q++) d[q] = s[b.across[j + q]];
      } else {
        for (i64 q = 0; q < NR; q++) d[q] = q < width ? s[b.across[j + q]] : 0;
      }
    }
  }
}

static void pack_right(Signal b, i64 k, i64 n, float* out) {
  for (i64 j = 0; j < n; j += NR) {
    i64 width = n - j < NR ? n - j : NR, tap = b.p % b.taps;
    const float* row = b.data + b.p / b.taps * b.channel;
    for (i64 p = 0; p < k; p++, out += NR) {
      i64 begin = (b.j + j) * b.step + tap * b.apart - b.before;  // what the first of these points reads
      const float* s = row + begin * b.point;
      i64 next = b.step * b.point;
      if (begin >= 0 && width == NR && begin + (NR - 1) * b.step < b.length) {
        if (next == 1) *(V*)out = *(const U*)s, *(V*)(out + 16) = *(const U*)(s + 16);
        else for (i64 q = 0; q < NR; q++) out[q] = s[q * next];
      } else if (next == 1) {
        i64 from = begin < 0 ? -begin : 0, end = b.length - begin < width ? b.length - begin : width;
        for (int h = 0; h < NR; h += 16)
          *(V*)(out + h) = load_part(s + h, first(end - h) & ~first(from - h), V{});
      } else {
        for (i64 q = 0; q < NR; q++) {
          i64 place = begin + q * b.step;
          out[q] = q < width && place >= 0 && place < b.length ? s[q * next] : 0;
        }
      }
      if (++tap == b.taps) tap = 0, row += b.channel;
    }
  }
}

// `rows` rows, of which `readable` may be read.
static void pack_left(Matrix a, i64 rows, i64 readable, i64 k, float* out) {
  i64 p = 0;
  if (a.rows == 1 && readable >= PR) {
    for (; p < k; p++) *(V*)(out + p * PR) = *(const U*)(a.data + p * a.columns);
  } else if (a.columns == 1 && readable >= PR) {
    for (; p + 16 <= k; p += 16) transpose<false>(a.data + p, a.rows, out + p * PR, PR, 16, 16);
  }
  for (; p < k; p++)
    for (i64 r = 0; r < rows; r++) out[p * PR + r] = *a.at(r, p).data;
}

template <class Right> static void block(i64 m, i64 n, i64 k, Matrix a, Right b, Result c) {
  i64 runs = (k + KC - 1) / KC, step = runs ? ((k + runs - 1) / runs + 15) / 16 * 16 : 1;
  // Rows a multiple of 2 KiB apart fall on few places of the first level of cache.
  bool direct = a.columns == 1 && (a.rows % 512 || a.rows <= 512);
  for (i64 j = 0; j < n; j += NC) {
    i64 width = n - j < NC ? n - j : NC;
    for (i64 p = 0; p < k; p += step) {
      i64 run = k - p < step ? k - p : step;
      pack_right(b.at(p, j), run, width, packed_right);
      for (i64 i = 0; i < m; i += MR) {
        i64 rows = m - i < MR ? m - i : MR;
        Result to = c.at(i, j);
        to.add = p > 0;
        if (direct) {
          rows_of<false>(rows, width, run, a.at(i, p), packed_right, to);
        } else {
          pack_left(a.at(i, p), rows, m - i, run, packed_left);
          rows_of<true>(rows, width, run, {packed_left, 0, 0}, packed_right, to);
        }
      }
    }
  }
}

extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_max_threads(void);

enum { LEAST_SHARED = 1 << 19 };  // terms of a product from which threads save more than they cost

template <class Right> static void multiply(i64 m, i64 n, i64 k, Matrix a, Right b, Result c) {
#pragma omp parallel if (m * n * k >= LEAST_SHARED)
  {
    i64 threads = omp_get_num_threads(), across = 1, me = omp_get_thread_num();
    for (i64 t = 1; t <= threads; t++)  // the most even blocks
      if (threads % t == 0 && m * t / threads + n / t < m * across / threads + n / across) across = t;
    i64 wide = ((n + across - 1) / across + NR - 1) / NR * NR, down = threads / across;
    i64 high = ((m + down - 1) / down + MR - 1) / MR * MR;
    i64 i = me / across * high, j = me % across * wide;
    if (i < m && j < n)
      block(m - i < high ? m - i : high, n - j < wide ? n - j : wide, k, a.at(i, 0), b.at(0, j), c.at(i, j));
  }
}

// pointers: left, right, result; numbers: m, n, k, strides of left, of right, distance of the result's rows
extern "C" void product(void** pointers, const i64* s) {
  multiply(s[0], s[1], s[2], {(float*)pointers[0], s[3], s[4]}, Matrix{(float*)pointers[1], s[5], s[6]},
           {(float*)pointers[2], s[7], nullptr, false});
}

// pointers: bias, left, right, result
extern "C" void product_and_bias(void** pointers, const i64* s) {
  multiply(s[0], s[1], s[2], {(float*)pointers[1], s[3], s[4]}, Matrix{(float*)pointers[2], s[5], s[6]},
           {(float*)pointers[3], s[7], (float*)pointers[0], false});
}

// pointers: left, right, result; numbers: batch, m, n, k, strides of left, of right, distances of the result's matrices
// and rows
extern "C" void batched_product(void** pointers, const i64* s) {
  i64 batch = s[0], m = s[1], n = s[2], k = s[3];
  Matrix a{(float*)pointers[0], s[5], s[6]}, b{(float*)pointers[1], s[8], s[9]};
  Result c{(float*)pointers[2], s[11], nullptr, false};
  auto from = [](Matrix of, i64 step) { return Matrix{of.data + step, of.rows, of.columns}; };
  auto to = [&](i64 i) { return Result{c.data + i * s[10], c.rows, nullptr, false}; };
  i64 threads = omp_get_max_threads();
  if (batch < threads) {
    for (i64 i = 0; i < batch; i++) multiply(m, n, k, from(a, i * s[4]), from(b, i * s[7]), to(i));
    return;
  }
#pragma omp parallel for schedule(static) if (batch * m * n * k >= LEAST_SHARED)
  for (i64 i = 0; i < batch; i++) block(m, n, k, from(a, i * s[4]), from(b, i * s[7]), to(i));
}

// pointers: weight, signals, result; the bias before them, where there is one. numbers: signals, features, points of a
// result, channels, points of a signal, distances of signals, channels and points, places of a window, how far apart they
// and the windows are, zeros before a signal
static void convolve(const float* bias, void** pointers, const i64* s) {
  i64 batch = s[0], features = s[1], points = s[2], taps = s[8], k = s[3] * taps;
  Matrix a{(float*)pointers[0], k, 1};
  auto signal = [&](i64 i) {
    return Signal{(float*)pointers[1] + i * s[5], s[6], s[7], s[4], taps, s[9], s[10], s[11], 0, 0};
  };
  auto to = [&](i64 i) { return Result{(float*)pointers[2] + i * features * points, points, nullptr, false, bias}; };
  if (batch % omp_get_max_threads()) {
    for (i64 i = 0; i < batch; i++) multiply(features, points, k, a, signal(i), to(i));
    return;
  }
#pragma omp parallel for schedule(static) if (batch * features * points * k >= LEAST_SHARED)
  for (i64 i = 0; i < batch; i++) block(features, points, k, a, signal(i), to(i));
}

extern "C" void convolution(void** pointers, const i64* s) { convolve(nullptr, pointers, s); }
extern "C" void convolution_and_bias(void** pointers, const i64* s) { convolve((float*)pointers[0], pointers + 1, s); }

// A convolution of images that lie channel by channel: a product with the matrix of what each window holds.
struct Convolution {
  i64 batch, channels, high, wide;     // of the input
  i64 features, out_high, out_wide;    // of the result
  i64 rows, columns;                   // of a window
  i64 step_i, step_j, pad_i, pad_j, apart_i, apart_j;
  i64 padded_wide() const { return wide + 2 * pad_j; }
  i64 plane() const { return (high + 2 * pad_i) * padded_wide(); }
  i64 window() const { return channels * rows * columns; }
  i64 points() const { return out_high * out_wide; }
};

static void pad(const Convolution& c, const float* from, float* to) {
#pragma omp parallel for schedule(static)
  for (i64 image = 0; image < c.batch * c.channels; image++) {
    float* d = to + image * c.plane();
    for (i64 i = -c.pad_i; i < c.high + c.pad_i; i++, d += c.padded_wide()) {
      bool inside = i >= 0 && i < c.high;
      for (i64 j = 0; j < c.pad_j; j++) d[j] = d[c.pad_j + c.wide + j] = 0;
      if (inside) __builtin_memcpy(d + c.pad_j, from + (image * c.high + i) * c.wide, c.wide * 4);
      else __builtin_memset(d + c.pad_j, 0, c.wide * 4);
    }
  }
}

static void window_places(const Convolution& c, int* to) {
  for (i64 channel = 0; channel < c.channels; channel++)
    for (i64 i = 0; i < c.rows; i++)
      for (i64 j = 0; j < c.columns; j++)
        *to++ = (int)(channel * c.plane() + i * c.apart_i * c.padded_wide() + j * c.apart_j);
}

static void point_places(const Convolution& c, int* to) {
  for (i64 image = 0; image < c.batch; image++)
    for (i64 i = 0; i < c.out_high; i++)
      for (i64 j = 0; j < c.out_wide; j++)
        *to++ = (int)(image * c.channels * c.plane() + i * c.step_i * c.padded_wide() + j * c.step_j);
}

// pointers: gradient of the result, input, gradient of the weight, room for the first in another order and as above
extern "C" void weight_gradient(void** pointers, const i64* numbers) {
  const Convolution& c = *(const Convolution*)numbers;
  i64 points = c.points(), all = c.batch * points;
  const float* given = (float*)pointers[0];
  float *padded = (float*)pointers[3], *gradient = padded + c.batch * c.channels * c.plane();
  int* down = (int*)(gradient + c.features * all);
  int* across = down + all;
  pad(c, (float*)pointers[1], padded);
  window_places(c, across);
  point_places(c, down);
#pragma omp parallel for schedule(static)
  for (i64 feature = 0; feature < c.features; feature++)
    for (i64 image = 0; image < c.batch; image++)
      __builtin_memcpy(gradient + feature * all + image * points, given + (image * c.features + feature) * points, points * 4);
  multiply(c.features, c.window(), all, {gradient, all, 1}, Gathered{padded, down, across},
           {(float*)pointers[2], c.window(), nullptr, false});
}
