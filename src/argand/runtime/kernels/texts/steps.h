// Runs the kernels and the products of a round once for each step of a loop, with pointers that advance. The right side
// of a product that is the same in all steps is packed once, before them.
#pragma GCC optimize("O2", "fp-contract=fast")
#if defined(__AVX512F__)
enum { BYTES = 64, MR = 8 };
#else
enum { BYTES = 32, MR = 4 };
#endif
enum {
  SC = 128,            // most products that are added up in one register: longer sums are less exact than eager's
  GRAIN = 1 << 18,     // terms of a product that a thread more is worth it
};
typedef long long i64;
typedef void (*Kernel)(void**, const i64*);
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

extern "C" int omp_get_max_threads(void);

struct Pointer {  // what it points to: element `first + step * advance` of a tensor, or that of the step within a ring
  i64 tensor, first, advance, ring, phase;
  char* at(char** tensors, i64 step) const {
    return tensors[tensor] + first + (ring ? (step + phase) % ring : step) * advance;
  }
};

// What a call does. A kernel: its address, and how many of its pointers follow. A product: sizes and strides in elements.
struct Call {
  i64 kind;  // 0: a kernel, 1: a product of floats, 2: of doubles
  i64 address, count;
  i64 bias, left, right, out;  // pointers; no bias: -1
  i64 batch, m, n, k;
  i64 bias_strides[3], left_strides[3], right_strides[3], out_strides[3];
  i64 packed;  // the place of the packed right side, in bytes
  i64 constant;  // the right side is that of all steps
};

template <typename T> struct Product {
  enum { LANES = BYTES / sizeof(T), NR = 2 * LANES };
  typedef T V __attribute__((vector_size(BYTES)));
  typedef T U __attribute__((vector_size(BYTES), aligned(sizeof(T))));

  static i64 panels(i64 n) { return (n + NR - 1) / NR; }

  // Panels of the matrix (k, n), one after the other.
  static void pack(const Call& c, const T* w, T* out) {
    i64 down = c.right_strides[1], across = c.right_strides[2];
    for (i64 j = 0; j < c.n; j += NR)
      for (i64 p = 0; p < c.k; p++, out += NR)
        for (i64 q = 0; q < NR; q++) out[q] = j + q < c.n ? w[p * down + (j + q) * across] : 0;
  }

  template <int R> INLINE void tile(i64 k, const T* a, i64 row, i64 along, const T* b, T* c, i64 to, bool add) {
    V s[R][2];
    UNROLL for (int r = 0; r < R; r++) s[r][0] = s[r][1] = V{};
    for (i64 p = 0; p < k; p++) {
      V b0 = *(const U*)(b + p * NR), b1 = *(const U*)(b + p * NR + LANES);
      UNROLL for (int r = 0; r < R; r++) {
        T x = a[r * row + p * along];
        s[r][0] += x * b0;
        s[r][1] += x * b1;
      }
    }
    UNROLL for (int r = 0; r < R; r++) {
      T* line = c + r * to;
      *(U*)line = add ? *(U*)line + s[r][0] : s[r][0];
      *(U*)(line + LANES) = add ? *(U*)(line + LANES) + s[r][1] : s[r][1];
    }
  }

  template <int R> static void rows(const Call& c, const T* bias, const T* a, const T* b, T* out, i64 j) {
    i64 row = c.left_strides[1], along = c.left_strides[2], wide = c.n - j < NR ? c.n - j : NR;
    T room[R * NR];
    bool whole = wide == NR && c.out_strides[2] == 1;
    T* to = whole ? out + j : room;
    i64 apart = whole ? c.out_strides[1] : NR;
    if (bias)
      for (int r = 0; r < R; r++)
        for (i64 q = 0; q < wide; q++) to[r * apart + q] = bias[r * c.bias_strides[1] + (j + q) * c.bias_strides[2]];
    for (i64 p = 0; p < c.k; p += SC)
      tile<R>(c.k - p < SC ? c.k - p : SC, a + p * along, row, along, b + p * NR, to, apart, p > 0 || bias);
    if (!whole)
      for (int r = 0; r < R; r++)
        for (i64 q = 0; q < wide; q++) out[r * c.out_strides[1] + (j + q) * c.out_strides[2]] = room[r * NR + q];
  }

  // Some rows of one panel.
  static void part(const Call& c, const T* bias, const T* a, const T* b, T* out, i64 first, i64 last, i64 panel) {
    const T* packed = b + panel * NR * c.k;
    i64 i = first, j = panel * NR;
    auto some = [&](auto rows_of, i64 count) {
      for (; i + count <= last; i += count)
        rows_of(c, bias ? bias + i * c.bias_strides[1] : bias, a + i * c.left_strides[1], packed, out + i * c.out_strides[1], j);
    };
    some(rows<MR>, MR);
    some(rows<MR / 2>, MR / 2);
    some(rows<1>, 1);
  }

  static void run(const Call& c, const T* bias, const T* left, const T* right, T* out, T* packed, i64 threads) {
    i64 wide = panels(c.n), each = wide * NR * c.k, high = (c.m + 4 * MR - 1) / (4 * MR), parts = c.batch * high * wide;
    i64 worth = c.batch * c.m * c.n * c.k / GRAIN + 1;
    if (!c.constant)
      for (i64 b = 0; b < c.batch; b++) pack(c, right + b * c.right_strides[0], packed + b * each);
    auto one = [&](i64 number) {
      i64 b = number / (high * wide), block = number / wide % high, panel = number % wide;
      i64 last = (block + 1) * 4 * MR < c.m ? (block + 1) * 4 * MR : c.m;
      part(c, bias ? bias + b * c.bias_strides[0] : bias, left + b * c.left_strides[0], packed + b * each,
           out + b * c.out_strides[0], block * 4 * MR, last, panel);
    };
    int team = worth < threads ? worth : threads;
    if (team <= 1 || parts == 1) {
      for (i64 number = 0; number < parts; number++) one(number);
      return;
    }
#pragma omp parallel for num_threads(team) schedule(static)
    for (i64 number = 0; number < parts; number++) one(number);
  }
};

template <typename T> static void product(const Call& c, const Pointer* all, char** tensors, char* packed, i64 step, i64 threads) {
  auto at = [&](i64 number) { return (T*)all[number].at(tensors, step); };
  T* bias = c.bias < 0 ? (T*)0 : at(c.bias);
  Product<T>::run(c, bias, at(c.left), at(c.right), at(c.out), (T*)(packed + c.packed), threads);
}

template <typename T> static void pack_once(const Call& c, const Pointer* all, char** tensors, char* packed) {
  T *out = (T*)(packed + c.packed), *right = (T*)all[c.right].at(tensors, 0);
  i64 each = Product<T>::panels(c.n) * Product<T>::NR * c.k;
  for (i64 b = 0; b < c.batch; b++) Product<T>::pack(c, right + b * c.right_strides[0], out + b * each);
}

// pointers: a table, room for packed sides, and the tensors. The table: steps, how many pointers and calls there are; the
// pointers; the calls; the pointers of kernels, one kernel's after the other's
extern "C" void steps(void** pointers, const i64*) {
  const i64* table = (const i64*)pointers[0];
  char *packed = (char*)pointers[1], **tensors = (char**)pointers + 2;
  i64 count = table[0], calls = table[2], threads = omp_get_max_threads(), most = 0;
  const Pointer* all = (const Pointer*)(table + 3);
  const Call* first = (const Call*)(all + table[1]);
  const i64* arguments = (const i64*)(first + calls);
  for (const Call* call = first; call < first + calls; call++) {
    if (call->kind == 0 && call->count > most) most = call->count;
    if (call->kind == 1 && call->constant) pack_once<float>(*call, all, tensors, packed);
    if (call->kind == 2 && call->constant) pack_once<double>(*call, all, tensors, packed);
  }
  void** given = (void**)__builtin_alloca((most + 1) * sizeof(void*));
  for (i64 step = 0; step < count; step++) {
    const i64* next = arguments;
    for (const Call* call = first; call < first + calls; call++) {
      if (call->kind == 1) product<float>(*call, all, tensors, packed, step, threads);
      if (call->kind == 2) product<double>(*call, all, tensors, packed, step, threads);
      if (call->kind) continue;
      for (i64 i = 0; i < call->count; i++) given[i] = all[*next++].at(tensors, step);
      ((Kernel)call->address)(given, table);
    }
  }
}
