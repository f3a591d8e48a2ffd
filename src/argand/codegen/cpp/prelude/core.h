// Vector types are GCC vector extensions: `vec<f32, 16>` is 16 floats. A vector of booleans is a vector of signed integers whose
// lanes are 0 or -1, of whatever width its maker had. Functions take a scalar or a vector of any width alike, and compute the
// same bits for both.
//@ core
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char u8; typedef unsigned short u16; typedef unsigned int u32; typedef unsigned long long u64;
typedef float f32; typedef double f64;
#define INLINE static inline __attribute__((always_inline))
template <class T, int N> struct vec_of { typedef T type __attribute__((vector_size(sizeof(T) * N))); };
template <class T, int N> using vec = typename vec_of<T, N>::type;
template <class T> struct strip { typedef T type; };
template <class T> struct strip<T&> { typedef T type; };
template <class V, class = void> struct traits { typedef V elem; static constexpr int lanes = 1; static constexpr bool vector = false; };
template <class V> struct traits<V, decltype((void)(*(V*)0)[0])> {
  typedef typename strip<decltype((*(V*)0)[0])>::type elem;
  static constexpr int lanes = sizeof(V) / sizeof(elem);
  static constexpr bool vector = true;
};
template <class V> using elem = typename traits<V>::elem;
template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };
template <int S> struct int_of { typedef i8 type; typedef u8 utype; };
template <> struct int_of<2> { typedef i16 type; typedef u16 utype; };
template <> struct int_of<4> { typedef i32 type; typedef u32 utype; };
template <> struct int_of<8> { typedef i64 type; typedef u64 utype; };
template <class V, class E, bool = traits<V>::vector> struct rebind_of { typedef vec<E, traits<V>::lanes> type; };
template <class V, class E> struct rebind_of<V, E, false> { typedef E type; };
template <class V, class E> using rebind = typename rebind_of<V, E>::type;
template <class V> using ints = rebind<V, typename int_of<sizeof(elem<V>)>::type>;
template <class V> using uints = rebind<V, typename int_of<sizeof(elem<V>)>::utype>;
template <class V> static constexpr bool is_float = same<elem<V>, f32>::value || same<elem<V>, f64>::value;
// The same number in every lane; -0.0 stays -0.0.
template <class V> INLINE V splat(elem<V> x) { if constexpr (traits<V>::vector) return x - V{}; else return x; }
template <class M> INLINE M splat_mask(bool x) { return splat<M>(-(elem<M>)x); }
template <class To, class V> INLINE To bits(V x) { return __builtin_bit_cast(To, x); }
template <class To, class V> INLINE To convert(V x) {
  if constexpr (same<To, V>::value) return x;
  else if constexpr (same<V, bool>::value && traits<To>::vector) return splat_mask<To>(x);  // one condition for all lanes
#if defined(__AVX512DQ__)  // one instruction each, where the compiler (GCC 12) finds several
  else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, u16>::value && !is_float<To>)
    return (To)__builtin_ia32_pmovzxwd512_mask((vec<i16, 16>)x, vec<i32, 16>{}, (u16)-1);
  else if constexpr (sizeof(V) == 64 && sizeof(To) == 32 && sizeof(elem<V>) == 4 && !is_float<V> && !is_float<To>)
    return (To)__builtin_ia32_pmovdw512_mask((vec<i32, 16>)x, vec<i16, 16>{}, (u16)-1);
  else if constexpr (sizeof(V) == 64 && sizeof(To) == 32 && sizeof(elem<V>) == 8 && !is_float<V> && !is_float<To>)
    return (To)__builtin_ia32_pmovqd512_mask((vec<i64, 8>)x, vec<i32, 8>{}, (u8)-1);
  else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, i32>::value && same<elem<To>, i64>::value)
    return __builtin_ia32_pmovsxdq512_mask(x, To{}, (u8)-1);
  else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, f32>::value && same<elem<To>, f64>::value)
    return __builtin_ia32_cvtps2pd512_mask(x, To{}, (u8)-1, 4);
  else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, f32>::value && same<elem<To>, i64>::value)
    return __builtin_ia32_cvttps2qq512_mask(x, To{}, (u8)-1, 4);
#if !defined(__clang__)
  else if constexpr (sizeof(V) == 16 && sizeof(To) == 64 && sizeof(elem<V>) == 1 && !is_float<To>) {
    const auto b = (vec<char, 16>)x;
    if constexpr (elem<V>(-1) < 0) return (To)__builtin_ia32_pmovsxbd512_mask(b, vec<i32, 16>{}, (u16)-1);
    else return (To)__builtin_ia32_pmovzxbd512_mask(b, vec<i32, 16>{}, (u16)-1);
  } else if constexpr (sizeof(V) == 64 && sizeof(To) == 16 && sizeof(elem<To>) == 1 && !is_float<V>)
    return (To)__builtin_ia32_pmovdb512_mask((vec<i32, 16>)x, vec<char, 16>{}, (u16)-1);
  else if constexpr (sizeof(V) == 16 && sizeof(To) == 64 && sizeof(elem<V>) == 2 && !is_float<To>) {
    if constexpr (elem<V>(-1) < 0) return (To)__builtin_ia32_pmovsxwq512_mask((vec<i16, 8>)x, vec<i64, 8>{}, (u8)-1);
    else return (To)__builtin_ia32_pmovzxwq512_mask((vec<i16, 8>)x, vec<i64, 8>{}, (u8)-1);
  } else if constexpr (sizeof(V) == 64 && sizeof(To) == 16 && sizeof(elem<To>) == 2 && !is_float<V>)
    return (To)__builtin_ia32_pmovqw512_mask((vec<i64, 8>)x, vec<i16, 8>{}, (u8)-1);
  else if constexpr (sizeof(V) == 8 && sizeof(To) == 64 && sizeof(elem<V>) == 1 && !is_float<To>) {
    vec<char, 16> b = {};
    __builtin_memcpy(&b, &x, 8);
    if constexpr (elem<V>(-1) < 0) return (To)__builtin_ia32_pmovsxbq512_mask(b, vec<i64, 8>{}, (u8)-1);
    else return (To)__builtin_ia32_pmovzxbq512_mask(b, vec<i64, 8>{}, (u8)-1);
  } else if constexpr (sizeof(V) == 64 && sizeof(To) == 8 && sizeof(elem<To>) == 1 && !is_float<V>) {
    const auto b = __builtin_ia32_pmovqb512_mask((vec<i64, 8>)x, vec<char, 16>{}, (u8)-1);
    To r;
    __builtin_memcpy(&r, &b, 8);
    return r;
  } else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, i32>::value && same<elem<To>, f64>::value)
    return __builtin_ia32_cvtdq2pd512_mask(x, To{}, (u8)-1);
  else if constexpr (sizeof(V) == 32 && sizeof(To) == 64 && same<elem<V>, i16>::value && !is_float<To>)
    return (To)__builtin_ia32_pmovsxwd512_mask(x, vec<i32, 16>{}, (u16)-1);
#endif
#endif
  // The compiler (GCC 12) takes one lane after the other where sizes differ by more than 2.
  else if constexpr (traits<V>::vector && sizeof(elem<V>) < sizeof(elem<To>) && sizeof(elem<V>) <= 2 && (sizeof(elem<To>) > 2 * sizeof(elem<V>) || is_float<To>)) {
    typedef int_of<sizeof(elem<V>) == 1 && sizeof(elem<To>) == 4 && !is_float<To> ? 2 : 4> I;
    if constexpr (elem<V>(-1) < 0) return convert<To>(convert<rebind<V, typename I::type>>(x));
    else return convert<To>(convert<rebind<V, typename I::utype>>(x));
  } else if constexpr (traits<V>::vector && sizeof(elem<V>) > 2 * sizeof(elem<To>) && !is_float<V>)
    return convert<To>(convert<rebind<V, typename int_of<sizeof(elem<V>) / 2>::type>>(x));
  else if constexpr (traits<V>::vector) return __builtin_convertvector(x, To);
  else return (To)x;
}
// a where m, b elsewhere.
template <class M, class V> INLINE V where(M m, V a, V b) {
  if constexpr (traits<V>::vector) return convert<ints<V>>(m) ? a : b;
  else return m ? a : b;
}
template <class V, class T> INLINE V load(const T* p) { V v; __builtin_memcpy(&v, p, sizeof v); return v; }
template <class V, class T> INLINE void store(T* p, V v) { __builtin_memcpy(p, &v, sizeof v); }
INLINE i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }
INLINE i64 floor_div_i64(i64 a, i64 b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
INLINE i64 floor_mod_i64(i64 a, i64 b) { return a - floor_div_i64(a, b) * b; }
INLINE i64 max_i64(i64 a, i64 b) { return a > b ? a : b; }
//@ equal_narrow
// Where lanes of 32 bits equal a number of 64.
template <class V> INLINE V equal_narrow(V a, i64 x) { return (a == splat<V>((i32)x)) & splat_mask<V>(x == (i32)x); }
//@ below_narrow
// Where lanes of 32 bits are less than a number of 64.
template <class V> INLINE V below_narrow(V a, i64 x) {
  const i64 most = 0x7fffffff;
  return (a < splat<V>((i32)max_i64(min_i64(x, most), -most - 1))) | splat_mask<V>(x > most);
}
//@ load_tail
// The first n lanes; the others are zero and their memory is not read.
template <class V, class T> INLINE V load_tail(const T* p, i64 n) {
  V v = {};
#ifdef __AVX512F__
  const u64 m = ~0ull >> (64 - n);
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) return (V)__builtin_ia32_loaddqusi512_mask((const i32*)p, (vec<i32, 16>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 8) return (V)__builtin_ia32_loaddqudi512_mask((const i64*)p, (vec<i64, 8>)v, m);
  else
#endif
#if defined(__AVX512VL__) && defined(__AVX512BW__)
  if constexpr (sizeof(V) == 32 && sizeof(T) == 4) return (V)__builtin_ia32_loaddqusi256_mask((const i32*)p, (vec<i32, 8>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 4) return (V)__builtin_ia32_loaddqusi128_mask((const i32*)p, (vec<i32, 4>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 8) return (V)__builtin_ia32_loaddqudi256_mask((const i64*)p, (vec<i64, 4>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 2) return (V)__builtin_ia32_loaddquhi512_mask((const i16*)p, (vec<i16, 32>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 2) return (V)__builtin_ia32_loaddquhi256_mask((const i16*)p, (vec<i16, 16>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 2) return (V)__builtin_ia32_loaddquhi128_mask((const i16*)p, (vec<i16, 8>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 1)
    return (V)__builtin_ia32_loaddquqi512_mask((const char*)p, (vec<char, 64>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 1)
    return (V)__builtin_ia32_loaddquqi256_mask((const char*)p, (vec<char, 32>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 1)
    return (V)__builtin_ia32_loaddquqi128_mask((const char*)p, (vec<char, 16>)v, m);
  else if constexpr (sizeof(V) < 16 && sizeof(T) <= 4) {  // part of a register
    const auto whole = load_tail<vec<elem<V>, 16 / sizeof(T)>>(p, n);
    __builtin_memcpy(&v, &whole, sizeof(V));
    return v;
  } else
#endif
  {
    for (int l = 0; l < traits<V>::lanes; ++l) if (l < n) v[l] = p[l];
    return v;
  }
}
//@ store_tail
// Stores the first n lanes only.
template <class V, class T> INLINE void store_tail(T* p, V v, i64 n) {
#ifdef __AVX512F__
  const u64 m = ~0ull >> (64 - n);
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) __builtin_ia32_storedqusi512_mask((i32*)p, (vec<i32, 16>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 8) __builtin_ia32_storedqudi512_mask((i64*)p, (vec<i64, 8>)v, m);
  else
#endif
#if defined(__AVX512VL__) && defined(__AVX512BW__)
  if constexpr (sizeof(V) == 32 && sizeof(T) == 4) __builtin_ia32_storedqusi256_mask((i32*)p, (vec<i32, 8>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 4) __builtin_ia32_storedqusi128_mask((i32*)p, (vec<i32, 4>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 8) __builtin_ia32_storedqudi256_mask((i64*)p, (vec<i64, 4>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 2) __builtin_ia32_storedquhi512_mask((i16*)p, (vec<i16, 32>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 2) __builtin_ia32_storedquhi256_mask((i16*)p, (vec<i16, 16>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 2) __builtin_ia32_storedquhi128_mask((i16*)p, (vec<i16, 8>)v, m);
  else if constexpr (sizeof(V) == 64 && sizeof(T) == 1) __builtin_ia32_storedquqi512_mask((char*)p, (vec<char, 64>)v, m);
  else if constexpr (sizeof(V) == 32 && sizeof(T) == 1) __builtin_ia32_storedquqi256_mask((char*)p, (vec<char, 32>)v, m);
  else if constexpr (sizeof(V) == 16 && sizeof(T) == 1) __builtin_ia32_storedquqi128_mask((char*)p, (vec<char, 16>)v, m);
  else if constexpr (sizeof(V) < 16 && sizeof(T) <= 4) {
    vec<elem<V>, 16 / sizeof(T)> whole = {};
    __builtin_memcpy(&whole, &v, sizeof(V));
    store_tail(p, whole, n);
  } else
#endif
    for (int l = 0; l < traits<V>::lanes; ++l) if (l < n) p[l] = v[l];
}
//@ store_stream
// A store that bypasses the caches, where the memory is aligned for that.
template <class V, class T> INLINE void store_stream(T* p, V v, bool aligned) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    if (aligned) __builtin_ia32_movntps512((f32*)p, (vec<f32, 16>)v);
    else store(p, v);
  } else
#endif
    store(p, v);
}
//@ end_stream
INLINE void end_stream() {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}
//@ load_bool
// Booleans in memory are bytes 0 or 1; in a vector they are 0 or -1.
template <class V> INLINE V load_bool(const bool* p) { return load<V>(p) != 0; }
//@ load_bool_tail
template <class V> INLINE V load_bool_tail(const bool* p, i64 n) { return load_tail<V>((const i8*)p, n) != 0; }
//@ to_bytes
template <class M> INLINE vec<i8, traits<M>::lanes> to_bytes(M m) { return convert<vec<i8, traits<M>::lanes>>(m) & 1; }
//@ store_bool
template <class M> INLINE void store_bool(bool* p, M m) { store(p, to_bytes(m)); }
//@ store_bool_tail
template <class M> INLINE void store_bool_tail(bool* p, M m, i64 n) { store_tail((i8*)p, to_bytes(m), n); }
//@ load_masked
// Lanes where m is false are zero and their memory is not read. base_n: lanes that exist.
template <class V, class M, class T> INLINE V load_masked(const T* p, M m) {
#if defined(__AVX512VL__) && defined(__AVX512DQ__)
  if constexpr (sizeof(T) == 4 && sizeof(V) == 64)
    return (V)__builtin_ia32_loaddqusi512_mask((const i32*)p, vec<i32, 16>{}, __builtin_ia32_cvtd2mask512((vec<i32, 16>)convert<ints<V>>(m)));
  else if constexpr (sizeof(T) == 4 && sizeof(V) == 32)
    return (V)__builtin_ia32_loaddqusi256_mask((const i32*)p, vec<i32, 8>{}, __builtin_ia32_cvtd2mask256((vec<i32, 8>)convert<ints<V>>(m)));
  else if constexpr (sizeof(T) == 8 && sizeof(V) == 64)
    return (V)__builtin_ia32_loaddqudi512_mask((const i64*)p, vec<i64, 8>{}, __builtin_ia32_cvtq2mask512((vec<i64, 8>)convert<ints<V>>(m)));
  else
#endif
  {
    V v = {};
    for (int l = 0; l < traits<V>::lanes; ++l) if (m[l]) v[l] = p[l];
    return v;
  }
}
//@ numbers
template <int... I> struct sequence {};
#if defined(__clang__)
template <class T, T... I> using sequence_of = sequence<I...>;
template <int N> using numbers = __make_integer_seq<sequence_of, int, N>;
#else
template <int N> using numbers = sequence<__integer_pack(N)...>;
#endif
//@ gather
// Lane l is at(l): an element of memory. Written lane after lane, each would wait for the one before.
template <class V, class F, int... I> INLINE V gather_lanes(F at, sequence<I...>) { return V{(elem<V>)at(I)...}; }
template <class V, class F> INLINE V gather(F at) { return gather_lanes<V>(at, numbers<traits<V>::lanes>{}); }
//@ gather_at
// Lane l is p[at[l]].
template <class V, class T, class I> INLINE V gather_at(const T* p, I at) {
#if defined(GATHERS) && defined(__AVX512F__)
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4 && sizeof(I) == 64)
    return (V)__builtin_ia32_gathersiv16sf(vec<f32, 16>{}, (const void*)p, (vec<i32, 16>)at, (u16)-1, 4);
#endif
  return gather<V>([&](int l) { return p[at[l]]; });
}
//@ gather_near
// The same, where the positions may be those of a few neighbours: one load and a permutation, within one page of memory.
template <class V, class T, class I> INLINE V gather_near(const T* p, I at) {
#if !defined(__clang__)
  if constexpr (sizeof(T) >= 4 && sizeof(V) >= 32) {
    const T* from = p + at[0];
    const auto off = convert<ints<V>>(at - at[0]);
    const auto far = (ints<V>)((uints<V>)off >= traits<V>::lanes);
    if (__builtin_expect(!any_lane(far) && ((u64)from & 4095) <= 4096 - sizeof(V), 1)) return __builtin_shuffle(load<V>(from), off);
  }
#endif
  return gather_at<V>(p, at);
}
//@ load_pairs
// Every second element from p on.
template <class V, class T, int... I> INLINE V load_pairs(const T* p, sequence<I...>) {
  constexpr int n = traits<V>::lanes;
  const V a = load<V>(p), b = load<V>(p + n - 1);  // no further than the last of them
  return __builtin_shufflevector(a, b, (I < n / 2 ? 2 * I : 2 * I + 1)...);
}
template <class V, class T> INLINE V load_pairs(const T* p) { return load_pairs<V>(p, numbers<traits<V>::lanes>{}); }
//@ load_pairs_masked
// Every second element from p on where m is true; the other lanes are zero and their memory is not read.
template <class V, class M, class T, int... I> INLINE V load_pairs_masked(const T* p, M m, sequence<I...>) {
#if defined(__AVX512DQ__) && defined(__BMI2__)
  if constexpr (sizeof(V) == 64 && sizeof(T) == 4) {
    const unsigned every = __builtin_ia32_pdep_si(__builtin_ia32_cvtd2mask512((vec<i32, 16>)convert<ints<V>>(m)), 0x55555555u);
    const V a = (V)__builtin_ia32_loaddqusi512_mask((const i32*)p, vec<i32, 16>{}, (u16)every);
    const V b = (V)__builtin_ia32_loaddqusi512_mask((const i32*)p + 16, vec<i32, 16>{}, (u16)(every >> 16));
    return __builtin_shufflevector(a, b, (2 * I)...);
  } else
#endif
    return V{(m[I] ? (elem<V>)p[2 * I] : elem<V>{})...};
}
template <class V, class M, class T> INLINE V load_pairs_masked(const T* p, M m) { return load_pairs_masked<V>(p, m, numbers<traits<V>::lanes>{}); }
//@ store_pairs
// The lanes of a at every second element from p on, those of b between them.
template <class V, class T, int... I> INLINE void store_pairs(T* p, V a, V b, sequence<I...>) {
  constexpr int n = traits<V>::lanes;
  store(p, __builtin_shufflevector(a, b, (I % 2 * n + I / 2)...));
  store(p + n, __builtin_shufflevector(a, b, (I % 2 * n + (n + I) / 2)...));
}
template <class V, class T> INLINE void store_pairs(T* p, V a, V b) { store_pairs(p, a, b, numbers<traits<V>::lanes>{}); }
//@ gather_tail
// Lane after lane through memory, the vector would wait for the last of its parts: only where n varies.
template <class V, class F, int... I> INLINE V gather_first(i64 n, F at, sequence<I...>) { return V{(I < n ? (elem<V>)at(I) : elem<V>{})...}; }
template <class V, class F> INLINE V gather_tail(i64 n, F at) {
  if (__builtin_constant_p(n)) return gather_first<V>(n, at, numbers<traits<V>::lanes>{});
  V v = {};
  for (int l = 0; l < n; ++l) v[l] = at(l);
  return v;
}
//@ gather_masked
template <class V, class M, class F> INLINE V gather_masked(M m, F at) {
  V v = {};
  for (int l = 0; l < traits<V>::lanes; ++l) if (m[l]) v[l] = at(l);
  return v;
}
//@ splat_masked
// One element of memory for all lanes, which is read only if m is true in one of them.
template <class V, class M, class F> INLINE V splat_masked(M m, F at) { return any_lane(m) ? splat<V>((elem<V>)at()) : V{}; }
//@ load_reversed
// Lane l is p[-l].
template <class V, class T, int... I> INLINE V load_reversed(const T* p, sequence<I...>) {
  constexpr int n = traits<V>::lanes;
  const V v = load<V>(p - (n - 1));
  return __builtin_shufflevector(v, v, (n - 1 - I)...);
}
template <class V, class T> INLINE V load_reversed(const T* p) { return load_reversed<V>(p, numbers<traits<V>::lanes>{}); }
//@ load_across
// Lanes before n are those of a, the others those of b, each at its own place; where m is false memory is not read.
template <class V, class M, class T> INLINE V load_across(const T* a, const T* b, i64 n, M m) {
#if defined(__AVX512VL__) && defined(__AVX512DQ__)
  if constexpr ((sizeof(T) == 4 && sizeof(V) >= 32) || (sizeof(T) == 8 && sizeof(V) == 64)) {
    const auto first = tail_mask<ints<V>>(min_i64(n, traits<V>::lanes)), wanted = convert<ints<V>>(m);
    return where(first, load_masked<V>(a, wanted & first), load_masked<V>(b, wanted & ~first));
  } else
#endif
  {
    V v = {};
    for (int l = 0; l < traits<V>::lanes; ++l) if (m[l]) v[l] = (l < n ? a : b)[l];
    return v;
  }
}
//@ scan_lanes
// Each of n lanes combined with those before it and with the carry, which becomes that of the last one.
template <class V, class T, class F> INLINE V scan_lanes(V v, T& carry, F f, i64 n = traits<V>::lanes) {
#pragma GCC unroll 64
  for (int l = 0; l < n; ++l) v[l] = carry = T(f(carry, T(v[l])));
  return v;
}
//@ scan_grouped
// The same for a function that no grouping of its operands changes: lanes 1, 2, 4 ... apart are combined at once.
template <int STEP, class V, int... I> INLINE V later_lanes(V v, V start, sequence<I...>) {
  return __builtin_shufflevector(start, v, (I < STEP ? I : traits<V>::lanes + I - STEP)...);
}
template <int STEP = 1, class V, class F> INLINE V scan_steps(V v, V start, F f) {
  if constexpr (STEP >= traits<V>::lanes) return v;
  else return scan_steps<2 * STEP>(f(v, later_lanes<STEP>(v, start, numbers<traits<V>::lanes>())), start, f);
}
template <class V, class T, class F> INLINE V scan_grouped(V v, T& carry, T start, F f, i64 n = traits<V>::lanes) {
  v = f(splat<V>(carry), scan_steps(v, splat<V>(start), f));
  carry = v[n - 1];
  return v;
}
//@ transpose
// HIGH 0: a0 b0 a1 b1 ... of the first halves; HIGH 1: of the second halves.
template <int HIGH, class V, int... I> INLINE V zip(V a, V b, sequence<I...>) {
  constexpr int n = traits<V>::lanes;
  return __builtin_shufflevector(a, b, (HIGH * n / 2 + I / 2 + (I & 1) * n)...);
}
// Rows of a square become its columns: zipping row i with row i + N/2 moves one bit of the row number into the lane number.
template <class V, int N> INLINE void transpose_here(V (&rows)[N]) {
  V other[N];
#pragma GCC unroll 8
  for (int step = 1; step < N; step *= 2) {
#pragma GCC unroll 64
    for (int i = 0; i < N / 2; ++i) {
      other[2 * i] = zip<0>(rows[i], rows[i + N / 2], numbers<N>());
      other[2 * i + 1] = zip<1>(rows[i], rows[i + N / 2], numbers<N>());
    }
#pragma GCC unroll 64
    for (int i = 0; i < N; ++i) rows[i] = other[i];
  }
}
template <class V, int N> static __attribute__((noinline)) void transpose_apart(V (&rows)[N]) { transpose_here(rows); }
// Rows that registers cannot hold are transposed by one function: with its shuffles at each of ten places g++ takes seconds.
template <class V, int N> INLINE void transpose(V (&rows)[N]) {
  if constexpr (N <= 32) transpose_here(rows);
  else transpose_apart(rows);
}
//@ tail_mask
template <class M> INLINE M tail_mask(i64 n) { return iota<M>(0, 1) < splat<M>((elem<M>)n); }
//@ iota
// start, start + step, start + 2 step, ...
template <class V> INLINE V iota(i64 start, i64 step) {
  V v;
#pragma GCC unroll 64
  for (int l = 0; l < traits<V>::lanes; ++l) v[l] = l;
  return v * splat<V>((elem<V>)step) + splat<V>((elem<V>)start);
}
//@ fold
// Combines the lanes of a vector pairwise.
template <class V, class F> INLINE elem<V> fold(V v, F op) {
  constexpr int n = traits<V>::lanes;
  if constexpr (n == 1) return v[0];
  else if constexpr (n == 2) return op(v[0], v[1]);
  else if constexpr (n == 4 && sizeof(V) <= 16) return op(op(v[0], v[2]), op(v[1], v[3]));  // the compiler unrolls slowly
  else if constexpr (sizeof(V) <= 16) {
    elem<V> x[n];
#pragma GCC unroll 16
    for (int l = 0; l < n; ++l) x[l] = v[l];
#pragma GCC unroll 4
    for (int w = n / 2; w > 0; w /= 2)
#pragma GCC unroll 8
      for (int l = 0; l < w; ++l) x[l] = op(x[l], x[l + w]);
    return x[0];
  } else {
    typedef vec<elem<V>, n / 2> half;
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) {
      const auto a = __builtin_ia32_extracti64x4_mask((vec<i64, 8>)v, 0, vec<i64, 4>{}, (u8)-1);
      const auto b = __builtin_ia32_extracti64x4_mask((vec<i64, 8>)v, 1, vec<i64, 4>{}, (u8)-1);
      return fold(op((half)a, (half)b), op);
    } else
#endif
    {
      half a, b;
      __builtin_memcpy(&a, &v, sizeof a);
      __builtin_memcpy(&b, (const char*)&v + sizeof a, sizeof a);
      return fold(op(a, b), op);
    }
  }
}
//@ fold_sum
template <class V> INLINE elem<V> fold_sum(V v) { return fold(v, [](auto a, auto b) { return decltype(a)(a + b); }); }
//@ fold_prod
template <class V> INLINE elem<V> fold_prod(V v) { return fold(v, [](auto a, auto b) { return decltype(a)(a * b); }); }
//@ fold_max
template <class V> INLINE elem<V> fold_max(V v) { return fold(v, [](auto a, auto b) { return maximum(a, b); }); }
//@ fold_min
template <class V> INLINE elem<V> fold_min(V v) { return fold(v, [](auto a, auto b) { return minimum(a, b); }); }
//@ fold_any
template <class V> INLINE bool fold_any(V v) { return fold(v, [](auto a, auto b) { return decltype(a)(a | b); }) != 0; }
//@ fold_all
template <class V> INLINE bool fold_all(V v) { return fold(v, [](auto a, auto b) { return decltype(a)(a & b); }) != 0; }
//@ fold_arg
// (value, index) of the best lane: NaN beats all, then the smaller index wins among equals.
template <class V, class I, class F> INLINE void fold_arg(V v, I at, elem<V>& best, i64& index, F better) {
  best = v[0]; index = at[0];
  for (int l = 1; l < traits<V>::lanes; ++l) {
    const bool equal = v[l] == best || (v[l] != v[l] && best != best);
    if (better(elem<V>(v[l]), best) || (equal && (i64)at[l] < index)) { best = v[l]; index = at[l]; }
  }
}
//@ arg_max_better
// True when a comes before b in the order of argmax (a NaN is the largest).
template <class V> INLINE auto arg_max_better(V a, V b) {
  if constexpr (is_float<V>) return (a > b) | ((a != a) & (b == b)); else return a > b;
}
//@ arg_min_better
template <class V> INLINE auto arg_min_better(V a, V b) {
  if constexpr (is_float<V>) return (a < b) | ((a != a) & (b == b)); else return a < b;
}
//@ atomic_add
template <class T> INLINE void atomic_add(T* p, T x) {
  if constexpr (is_float<T>) {
    typedef typename int_of<sizeof(T)>::type I;
    I old = __atomic_load_n((I*)p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n((I*)p, &old, bits<I>((T)(bits<T>(old) + x)), true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
  } else __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
//@ check_index
// An atomic store would keep what loops add up in memory (GCC at -O1); a volatile one is the same instruction.
// An index into a dimension of `size`; negative ones count from the end when WRAP. A bad one sets *error and becomes 0.
template <bool WRAP, class V> INLINE i64 check_index(V x, i64 size, i32* error) {
  i64 i = (i64)x;
  if (WRAP && i < 0) i += size;
  if (__builtin_expect((u64)i >= (u64)size, 0)) { *(volatile i32*)error = 1; return 0; }
  return i;
}
//@ check_indices_masked
// The same for lanes where m is true; the others are 0.
template <bool WRAP, class V, class M> INLINE rebind<V, i64> check_indices_masked(V x, i64 size, i32* error, M m) {
  typedef rebind<V, i64> I;
  const I used = convert<I>(m);
  I at = convert<I>(x);
  if (WRAP) at = where(at < 0, at + size, at);
  const I bad = (I)((rebind<V, u64>)at >= (u64)size) & used;
  at &= used & ~bad;
  if (__builtin_expect(any_lane(bad), 0)) *(volatile i32*)error = 1;
  return at;
}
//@ check_indices
template <bool WRAP, class V> INLINE rebind<V, i64> check_indices(V x, i64 size, i32* error, i64 n = traits<V>::lanes) {
  return check_indices_masked<WRAP>(x, size, error, tail_mask<rebind<V, i64>>(n));
}
//@ check_divisor
// A divisor of integers; 0 sets *error and becomes 1.
template <class V> INLINE V check_divisor(V x, i32* error) {
  if (__builtin_expect(x == 0, 0)) { *(volatile i32*)error = 2; return 1; }
  return x;
}
//@ check_divisors_masked
// The same for lanes where m is true.
template <class V, class M> INLINE V check_divisors_masked(V x, i32* error, M m) {
  const auto zero = (ints<V>)(x == 0);
  if (__builtin_expect(any_lane(zero & convert<ints<V>>(m)), 0)) *(volatile i32*)error = 2;
  return where(zero, splat<V>(1), x);
}
//@ check_divisors
template <class V> INLINE V check_divisors(V x, i32* error, i64 n = traits<V>::lanes) {
  return check_divisors_masked(x, error, tail_mask<ints<V>>(n));
}
//@ workspace
extern "C" void* aligned_alloc(unsigned long, unsigned long) noexcept;
extern "C" void free(void*) noexcept;
// Scratch memory of this thread for one place in the code, kept for the next call.
template <int ID> static void* workspace(i64 bytes) {
  static __thread void* block;
  static __thread i64 size;
  if (size < bytes) {
    free(block);
    size = (bytes + 4095) / 4096 * 4096;
    block = aligned_alloc(64, size);
  }
  return block;
}
//@ per_lane
template <class V, class F> INLINE V per_lane(F f, V x) {
  if constexpr (traits<V>::vector) {
    V r;
    for (int l = 0; l < traits<V>::lanes; ++l) r[l] = f((elem<V>)x[l]);
    return r;
  } else return f(x);
}
//@ per_lane2
template <class V, class F> INLINE V per_lane2(F f, V x, V y) {
  if constexpr (traits<V>::vector) {
    V r;
    for (int l = 0; l < traits<V>::lanes; ++l) r[l] = f((elem<V>)x[l], (elem<V>)y[l]);
    return r;
  } else return f(x, y);
}
