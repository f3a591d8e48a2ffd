// Elementary functions. Coefficients are minimax fits made for this file (Remez exchange on the reduced interval); the bounds
// stated are the largest errors found by tests/codegen/cpp/test_math.py against float64 (or 80-bit) references.
//@ fma
template <class V> INLINE V fma(V a, V b, V c) {
#if defined(__FMA__)
  if constexpr (same<V, f32>::value) return __builtin_fmaf(a, b, c);
  else if constexpr (same<V, f64>::value) return __builtin_fma(a, b, c);
#if defined(__AVX512F__)
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64) return __builtin_ia32_vfmaddps512_mask(a, b, c, (u16)-1, 4);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 64) return __builtin_ia32_vfmaddpd512_mask(a, b, c, (u8)-1, 4);
#endif
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 32) return __builtin_ia32_vfmaddps256(a, b, c);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 32) return __builtin_ia32_vfmaddpd256(a, b, c);
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 16) return __builtin_ia32_vfmaddps(a, b, c);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 16) return __builtin_ia32_vfmaddpd(a, b, c);
  else {
    V r;
    for (int l = 0; l < traits<V>::lanes; ++l) r[l] = fma((elem<V>)a[l], (elem<V>)b[l], (elem<V>)c[l]);
    return r;
  }
#else
  return a * b + c;
#endif
}
//@ any_lane
template <class M> INLINE bool any_lane(M m) {
#if defined(__AVX512DQ__) && defined(__AVX512VL__)
  if constexpr (sizeof(M) == 64 && sizeof(elem<M>) == 4) return __builtin_ia32_cvtd2mask512((vec<i32, 16>)m) != 0;
  else if constexpr (sizeof(M) == 32 && sizeof(elem<M>) == 4) return __builtin_ia32_cvtd2mask256((vec<i32, 8>)m) != 0;
  else if constexpr (sizeof(M) == 64 && sizeof(elem<M>) == 8) return __builtin_ia32_cvtq2mask512((vec<i64, 8>)m) != 0;
  else
#endif
  if constexpr (traits<M>::vector) return fold_any(m);
  else return m;
}
//@ abs
// Integers wrap: abs(INT_MIN) is INT_MIN.
template <class V> INLINE V abs(V x) {
  if constexpr (is_float<V>) return bits<V>(bits<ints<V>>(x) & splat<ints<V>>((elem<ints<V>>)(~0ull >> (65 - 8 * sizeof(elem<V>)))));
  else if constexpr ((elem<V>)-1 > 0) return x;
  else return where(x < splat<V>(0), bits<V>((uints<V>)(uints<V>{} - bits<uints<V>>(x))), x);
}
//@ sqrt
template <class V> INLINE V sqrt(V x) {
  if constexpr (same<V, f32>::value) return __builtin_sqrtf(x);
  else if constexpr (same<V, f64>::value) return __builtin_sqrt(x);
#if defined(__AVX512F__)
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64) {  // the instruction's results, in half of its time
    const V half = splat<V>(0.5f), r = __builtin_ia32_rsqrt14ps512_mask(x, V{}, (u16)-1), s = x * r, h = half * r;
    const V more = fma(-s, h, half), t = fma(s, more, s), root = fma(fma(-t, t, x), fma(h, more, h), t);
    const auto odd = __builtin_ia32_cmpps512_mask(x, splat<V>(0x1p-100f), 9, (u16)-1, 4)  // less, or NaN
      | __builtin_ia32_cmpps512_mask(x, splat<V>(0x1p+126f), 14, (u16)-1, 4);
    return __builtin_expect(odd, 0) ? __builtin_ia32_sqrtps512_mask(x, root, odd, 4) : root;
  }
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 64) return __builtin_ia32_sqrtpd512_mask(x, x, (u8)-1, 4);
#endif
#if defined(__AVX__)
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 32) return __builtin_ia32_sqrtps256(x);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 32) return __builtin_ia32_sqrtpd256(x);
#endif
#if defined(__SSE2__)
  else if constexpr (same<elem<V>, f32>::value && sizeof(V) == 16) return __builtin_ia32_sqrtps(x);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 16) return __builtin_ia32_sqrtpd(x);
#endif
  else return per_lane([](auto e) { return sqrt(e); }, x);
}
//@ rsqrt
template <class V> INLINE V rsqrt(V x) { return splat<V>(1) / sqrt(x); }
//@ reciprocal
template <class V> INLINE V reciprocal(V x) { return splat<V>(1) / x; }
//@ round_mode
// MODE: 0 nearest even, 1 down, 2 up, 3 towards zero.
template <int MODE, class V> INLINE V round_mode(V x) {
#if defined(__AVX512F__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64) return __builtin_ia32_rndscaleps_mask(x, MODE | 8, x, (u16)-1, 4);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 64) return __builtin_ia32_rndscalepd_mask(x, MODE | 8, x, (u8)-1, 4);
  else
#endif
#if defined(__AVX__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 32) return __builtin_ia32_roundps256(x, MODE | 8);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 32) return __builtin_ia32_roundpd256(x, MODE | 8);
  else
#endif
#if defined(__SSE4_1__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 16) return __builtin_ia32_roundps(x, MODE | 8);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 16) return __builtin_ia32_roundpd(x, MODE | 8);
  else
#endif
  if constexpr (traits<V>::vector) return per_lane([](auto e) { return round_mode<MODE>(e); }, x);
  else if constexpr (same<V, f32>::value)
    return MODE == 0 ? __builtin_nearbyintf(x) : MODE == 1 ? __builtin_floorf(x) : MODE == 2 ? __builtin_ceilf(x) : __builtin_truncf(x);
  else return MODE == 0 ? __builtin_nearbyint(x) : MODE == 1 ? __builtin_floor(x) : MODE == 2 ? __builtin_ceil(x) : __builtin_trunc(x);
}
//@ round
template <class V> INLINE V round(V x) { if constexpr (is_float<V>) return round_mode<0>(x); else return x; }
//@ floor
template <class V> INLINE V floor(V x) { if constexpr (is_float<V>) return round_mode<1>(x); else return x; }
//@ ceil
template <class V> INLINE V ceil(V x) { if constexpr (is_float<V>) return round_mode<2>(x); else return x; }
//@ trunc
template <class V> INLINE V trunc(V x) { if constexpr (is_float<V>) return round_mode<3>(x); else return x; }
//@ raw_extreme
// a > b ? a : b (or a < b), so b when either is NaN: one instruction, which the compiler does not find by itself.
template <bool MAX, class V> INLINE V raw_extreme(V a, V b) {
#define EITHER(type, ...) return MAX ? __builtin_ia32_max##type(__VA_ARGS__) : __builtin_ia32_min##type(__VA_ARGS__)
#if defined(__AVX512F__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64) EITHER(ps512_mask, a, b, a, (u16)-1, 4);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 64) EITHER(pd512_mask, a, b, a, (u8)-1, 4);
  else
#endif
#if defined(__AVX__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 32) EITHER(ps256, a, b);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 32) EITHER(pd256, a, b);
  else
#endif
#if defined(__SSE2__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 16) EITHER(ps, a, b);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 16) EITHER(pd, a, b);
  else
#endif
#undef EITHER
  return where(MAX ? a > b : a < b, a, b);
}
//@ raw_max
template <class V> INLINE V raw_max(V a, V b) { return raw_extreme<true>(a, b); }
//@ raw_min
template <class V> INLINE V raw_min(V a, V b) { return raw_extreme<false>(a, b); }
//@ maximum
// A NaN in either operand is the result.
template <class V> INLINE V maximum(V a, V b) {
  const V m = raw_max(a, b);
  if constexpr (is_float<V>) return where(a != a, a, m); else return m;
}
//@ minimum
template <class V> INLINE V minimum(V a, V b) {
  const V m = raw_min(a, b);
  if constexpr (is_float<V>) return where(a != a, a, m); else return m;
}
//@ horner
// A polynomial in x; the highest coefficient first.
template <class V, class... C> INLINE V horner(V x, elem<V> highest, C... rest) {
  V p = splat<V>(highest);
  ((p = fma(p, x, splat<V>((elem<V>)rest))), ...);
  return p;
}
//@ scale2
// x * 2^n; n is whole and within twice the exponent range. The first product is exact, so it rounds once, subnormal results too.
template <class V> INLINE V scale2(V x, V n) {
  typedef ints<V> I;
  constexpr int mantissa = sizeof(elem<V>) == 4 ? 23 : 52, bias = sizeof(elem<V>) == 4 ? 127 : 1023;
#if defined(__AVX512F__)
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64) return __builtin_ia32_scalefps512_mask(x, n, x, (u16)-1, 4);
  else if constexpr (same<elem<V>, f64>::value && sizeof(V) == 64) return __builtin_ia32_scalefpd512_mask(x, n, x, (u8)-1, 4);
  else
#endif
  {
    const I i = convert<I>(n), half = i >> 1;
    return x * bits<V>((half + splat<I>(bias)) << mantissa) * bits<V>((i - half + splat<I>(bias)) << mantissa);
  }
}
//@ exp_parts
// exp(x) = 2^n (1 + q), |log(1 + q)| <= log(2) / 2, for x within the range of exp.
template <class V> INLINE V exp_parts(V x, V& n) {
  if constexpr (same<elem<V>, f32>::value) {
    const V shift = splat<V>(0x1.8p23f);
    n = fma(x, splat<V>(0x1.715476p+0f), shift) - shift;
    V r = fma(n, splat<V>(-0x1.62e4p-1f), x);
    r = fma(n, splat<V>(-0x1.7f7d1cp-20f), r);
    V p = horner(r, 1.381446881e-3f, 8.368780434e-3f, 4.166839417e-2f, 1.666652011e-1f, 4.999999341e-1f);
    return fma(p, r * r, r);
  } else {
    const V shift = splat<V>(0x1.8p52);
    n = fma(x, splat<V>(0x1.71547652b82fep+0), shift) - shift;
    V r = fma(n, splat<V>(-0x1.62e42fefa38p-1), x);
    r = fma(n, splat<V>(-0x1.ef35793c7673p-45), r);
    V p = horner(r, 2.082652397128264118e-9, 2.511214437055627514e-8, 2.755758284212362680e-7, 2.755723455919757513e-6,
      2.480158692453908431e-5, 1.984126989668042972e-4, 1.388888888911730610e-3, 8.333333333316917357e-3,
      4.166666666666608900e-2, 1.666666666666668357e-1, 5.000000000000000044e-1);
    return fma(p, r * r, r);
  }
}
//@ exp2_parts
// 2^t = 2^n (1 + q), |q| < 0.42; cheaper than `exp_parts`. |t| is below 2^22.
template <class V> INLINE V exp2_parts(V t, V& n) {
  const V shift = splat<V>(sizeof(elem<V>) == 4 ? 0x1.8p23f : 0x1.8p52);
  n = (t + shift) - shift;
  const V r = t - n;
  if constexpr (same<elem<V>, f32>::value) {
    V p = horner(r, 1.540351134e-4f, 1.339073571e-3f, 9.618237503e-3f, 5.550357433e-2f, 2.402264979e-1f,
      6.931471879e-1f);
    return p * r;
  } else {
    V p = horner(r, 2.567840469341743319e-11, 4.455804873395507334e-10, 7.054932288724030987e-9,
      1.017805716916592248e-7, 1.321548672131411050e-6, 1.525273384137873143e-5, 1.540353039346622041e-4,
      1.333355814640662958e-3, 9.618129107628436922e-3, 5.550410866482162654e-2, 2.402265069591007129e-1,
      6.931471805599453093e-1);
    return p * r;
  }
}
//@ clamp_keep_nan
template <class V> INLINE V clamp_keep_nan(V x, elem<V> low, elem<V> high) {
  return raw_max(splat<V>(low), raw_min(splat<V>(high), x));
}
//@ exp
// At most 1.01 ulp. What is too small for any number, as -inf in masked scores is, does not underflow on the way to 0: that
// takes some processors a hundred cycles.
template <class V> INLINE V exp(V x) {
  typedef elem<V> E;
#if defined(TABLES)
  if constexpr (same<E, f32>::value) return exp_by_table(x);
#endif
  V n;
  const E low = sizeof(E) == 4 ? (E)-104.5f : (E)-746.0, high = sizeof(E) == 4 ? (E)89.0f : (E)710.0;
#if defined(__AVX512F__)
  constexpr int not_less = 0x15;  // or NaN
  if constexpr (same<E, f64>::value && sizeof(V) == 64) {
    const auto kept = __builtin_ia32_cmppd512_mask(x, splat<V>(low), not_less, (u8)-1, 4);
    const V q = exp_parts(clamp_keep_nan(x, low, high), n);
    return __builtin_ia32_scalefpd512_mask(splat<V>(1) + q, n, V{}, kept, 4);
  } else
#endif
  {
    const auto gone = x < splat<V>(low);
    const V q = exp_parts(where(gone, splat<V>(0), raw_min(splat<V>(high), x)), n);
    return where(gone, splat<V>(0), scale2(splat<V>(1) + q, n));
  }
}
//@ exp2
// At most 1.2 ulp.
template <class V> INLINE V exp2(V x) {
  V n;
  const V c = sizeof(elem<V>) == 4 ? clamp_keep_nan(x, -151.0f, 129.0f) : clamp_keep_nan(x, -1076.0, 1025.0);
  const V q = exp2_parts(c, n);
  return scale2(splat<V>(1) + q, n);
}
//@ expm1
// At most 2 ulp.
template <class V> INLINE V expm1(V x) {
  V n;
  const V c = sizeof(elem<V>) == 4 ? clamp_keep_nan(x, -20.0f, 89.0f) : clamp_keep_nan(x, -40.0, 710.0);
  const V q = exp_parts(c, n);
  // Near the largest exponent 2^n overflows before the result does: halve, then double.
  const V h = splat<V>((elem<V>)0.5), s = scale2(h, n);
  const V r = fma(s, q, s - h);
  return where((x == splat<V>(0)) | (x != x), x, r + r);
}
//@ log_parts
// x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); x positive and finite, subnormal too.
template <class V> INLINE V log_parts(V x, V& e) {
  typedef ints<V> I;
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    V m, root;
    if constexpr (same<elem<V>, f32>::value) m = __builtin_ia32_getmantps512_mask(x, 0, V{}, (u16)-1, 4),
      e = __builtin_ia32_getexpps512_mask(x, V{}, (u16)-1, 4), root = bits<V>(splat<I>(0x3fb504f3));
    else m = __builtin_ia32_getmantpd512_mask(x, 0, V{}, (u8)-1, 4), e = __builtin_ia32_getexppd512_mask(x, V{}, (u8)-1, 4),
      root = bits<V>(splat<I>(0x3ff6a09e667f3bcdLL));
    e = where(m >= root, e + splat<V>(1), e);
    return where(m >= root, m * splat<V>((elem<V>)0.5), m) - splat<V>(1);
  } else
#endif
  if constexpr (same<elem<V>, f32>::value) {
    const auto tiny = x < splat<V>(0x1p-126f);
    const I i = bits<I>(where(tiny, x * splat<V>(0x1p23f), x)), k = (i - splat<I>(0x3f3504f3)) >> 23;
    e = convert<V>(k) - where(tiny, splat<V>(23), splat<V>(0));
    return bits<V>(i - (k << 23)) - splat<V>(1);
  } else {
    const auto tiny = x < splat<V>(0x1p-1022);
    const I i = bits<I>(where(tiny, x * splat<V>(0x1p52), x)), k = (i - splat<I>(0x3fe6a09e667f3bcdLL)) >> 52;
    e = convert<V>(k) - where(tiny, splat<V>(52), splat<V>(0));
    return bits<V>(i - (k << 52)) - splat<V>(1);
  }
}
//@ log1p_small
// log(1 + f) - f for 1 + f in [sqrt(1/2), sqrt(2)), accurate relative to f.
template <class V> INLINE V log1p_small(V f) {
  if constexpr (same<elem<V>, f32>::value) {
    V p = horner(f, 6.915588302e-2f, -1.178987403e-1f, 1.187290757e-1f, -1.238433225e-1f, 1.421866621e-1f,
      -1.666925208e-1f, 2.000222619e-1f, -2.499998657e-1f, 3.333331045e-1f);
    const V f2 = f * f;
    return fma(f2 * f, p, splat<V>(-0.5f) * f2);
  } else {
    const V s = f / (splat<V>(2) + f), z = s * s, half = splat<V>(0.5) * f * f;
    V p = horner(z, 1.325275628424075407e-1, 1.324996188916493539e-1, 1.538709765552011400e-1, 1.818177550846476150e-1,
      2.222222264875039989e-1, 2.857142856907297265e-1, 4.000000000000628703e-1, 6.666666666666666093e-1);
    return s * fma(z, p, half) - half;
  }
}
//@ log_special
// The result r of a logarithm where x is positive and finite; what the limits are elsewhere.
template <class V> INLINE V log_special(V x, V r) {
#if defined(__AVX512F__)
  // From the right, a digit for each kind of x (NaNs, 0, 1, -inf, inf, less, more): r, the same NaN, a NaN, -inf or inf.
  constexpr int kinds = 0x03530422;
  if constexpr (same<elem<V>, f32>::value && sizeof(V) == 64)
    return __builtin_ia32_fixupimmps512_mask(r, x, splat<ints<V>>(kinds), 0, (u16)-1, 4);
  else if constexpr (sizeof(V) == 64)
    return __builtin_ia32_fixupimmpd512_mask(r, x, splat<ints<V>>(kinds), 0, (u8)-1, 4);
#endif
  const V inf = splat<V>((elem<V>)__builtin_inff()), nan = splat<V>((elem<V>)__builtin_nanf(""));
  r = where(x < inf, r, x);
  r = where(x == splat<V>(0), -inf, r);
  return where(x < splat<V>(0), nan, r);
}
//@ log
// At most 1 ulp.
template <class V> INLINE V log(V x) {
#if defined(TABLES)
  if constexpr (same<elem<V>, f32>::value)
    return in_whole_registers([](auto x) {
      typedef decltype(x) W;
      W e, of_c;
      const W low = log_by_table(x, natural_logs, e, of_c);
      return log_special(x, fma(e, splat<W>(0x1.62e4p-1f), of_c + fma(e, splat<W>(0x1.7f7d1cp-20f), low)));
    }, x);
#endif
  V e;
  const V f = log_parts(x, e);
  constexpr bool single = same<elem<V>, f32>::value;
  const V low = fma(e, splat<V>(single ? 0x1.7f7d1cp-20f : 0x1.ef35793c7673p-45), log1p_small(f));
  return log_special(x, fma(e, splat<V>(single ? 0x1.62e4p-1f : 0x1.62e42fefa38p-1), f + low));
}
//@ log2
// At most 2 ulp.
template <class V> INLINE V log2(V x) {
#if defined(TABLES)
  if constexpr (same<elem<V>, f32>::value)
    return in_whole_registers([](auto x) {
      typedef decltype(x) W;
      W e, of_c;
      const W low = log_by_table(x, binary_logs, e, of_c);
      return log_special(x, e + (of_c + fma(low, splat<W>(0x1.c551d94ae0bf8p-2), low)));
    }, x);
#endif
  V e;
  const V f = log_parts(x, e);
  constexpr bool single = same<elem<V>, f32>::value;
  // log2(e) = 1 + c: the product with 1 is exact.
  const V c = splat<V>(0x1.c551d94ae0bf8p-2), low = log1p_small(f);
  return log_special(x, e + (f + fma(low, c, fma(f, c, low))));
}
//@ log10
// At most 2 ulp.
template <class V> INLINE V log10(V x) {
  V e;
  const V f = log_parts(x, e);
  constexpr bool single = same<elem<V>, f32>::value;
  // 1 / log(10) and log10(2) as a short and a rest.
  const V low = log1p_small(f);
  const V high = splat<V>(single ? 0x1.bcp-2f : 0x1.bcb7b14p-2), rest = splat<V>(single ? 0x1.6f62a4p-11f : 0x1.26e50e32a6ab7p-30);
  const V m = fma(f, rest, fma(low, rest, low * high));
  const V two_high = splat<V>(single ? 0x1.3442p-2f : 0x1.34413509f78p-2), two_low = splat<V>(single ? -0x1.95ec1p-19f : 0x1.fef311f12b358p-46);
  return log_special(x, fma(e, two_high, fma(f, high, fma(e, two_low, m))));
}
//@ log1p
// At most 2 ulp.
template <class V> INLINE V log1p(V x) {
  const V one = splat<V>(1), u = one + x;
  // What rounding u lost, relative to u.
  const V lost = where(x < one, x - (u - one), one - (u - x)) / u;
  V e;
  const V f = log_parts(u, e);
  constexpr bool single = same<elem<V>, f32>::value;
  const V k = where(u < splat<V>((elem<V>)__builtin_inff()), lost, splat<V>(0));
  const V low = fma(e, splat<V>(single ? 0x1.7f7d1cp-20f : 0x1.ef35793c7673p-45), log1p_small(f) + k);
  const V r = log_special(u, fma(e, splat<V>(single ? 0x1.62e4p-1f : 0x1.62e42fefa38p-1), f + low));
  return where((abs(x) < splat<V>(single ? 0x1p-24f : 0x1p-53)) | (x != x), x, r);
}
//@ log_add_exp
// log(exp(total) + exp(x)), of equal infinities x.
template <class V> INLINE V log_add_exp(V total, V x) {
  const V low = minimum(x, total), high = maximum(x, total);
  return where(logical_or(low != high, isfinite(low)), log1p(exp(low - high)) + high, x);
}
//@ copysign
template <class V> INLINE V copysign(V x, V s) {
  typedef ints<V> I;
  const I sign = splat<I>((elem<I>)(1ull << (8 * sizeof(elem<V>) - 1)));
  return bits<V>((bits<I>(x) & ~sign) | (bits<I>(s) & sign));
}
//@ sigmoid
// At most 3.1 ulp (eager's 2.5): the same formula.
template <class V> INLINE V sigmoid(V x) { return splat<V>(1) / (splat<V>(1) + exp(-x)); }
//@ sin_and_cos
// Of what is left of x, a float, without whole quarters of a turn; how many these are.
template <class V> INLINE ints<V> sin_and_cos(V x, V& s, V& c) {
  const V shift = splat<V>(0x1.8p23f), m = fma(x, splat<V>(0x1.45f306p-1f), shift), n = m - shift;
  V r = fma(n, splat<V>(-0x1.921fb6p+0f), x);
  r = fma(n, splat<V>(0x1.777a5cp-25f), r);
  r = fma(n, splat<V>(0x1.ee59dap-50f), r);
  const V z = r * r;
  s = horner(z, 2.718237284e-6f, -1.983932714e-4f, 8.333329362e-3f, -1.666666664e-1f);
  s = fma(s * z, r, r);
  c = splat<V>(2.443773042e-5f);
  c = fma(c, z, splat<V>(-1.388736145e-3f));
  c = fma(c, z, splat<V>(4.166664675e-2f));
  c = fma(c, z * z, fma(z, splat<V>(-0.5f), splat<V>(1)));
  return bits<ints<V>>(m);
}
//@ sin_cos
// sin (QUARTER = 0) or cos (QUARTER = 1). float: at most 2 ulp up to |x| = 30000, beyond that the C library's, per lane.
template <int QUARTER, class V> INLINE V sin_cos(V x) {
  if constexpr (same<elem<V>, f32>::value) {
    typedef ints<V> I;
    const auto far = abs(x) > splat<V>(30000.0f);
    V s, c;
    const I k = sin_and_cos(x, s, c) + splat<I>(QUARTER);
    const V y = where((k & splat<I>(1)) != splat<I>(0), c, s);
    V result = bits<V>(bits<I>(y) ^ ((k & splat<I>(2)) << 30));
    if (QUARTER == 0) result = where(x == splat<V>(0), x, result);
    if (__builtin_expect(any_lane(far), 0))
      return where(far, per_lane([](f32 e) { return QUARTER ? __builtin_cosf(e) : __builtin_sinf(e); }, x), result);
    return result;
  } else return per_lane([](f64 e) { return QUARTER ? __builtin_cos(e) : __builtin_sin(e); }, x);
}
//@ sin
template <class V> INLINE V sin(V x) { return sin_cos<0>(x); }
//@ cos
template <class V> INLINE V cos(V x) { return sin_cos<1>(x); }
//@ fmod
// Floats: exact. Integers: the sign of the dividend; a zero divisor gives 0 (eager raises before it gets here).
template <class V> INLINE V fmod(V x, V y) {
  if constexpr (is_float<V>) {
#if defined(__FMA__)  // while the quotient is a whole number of the type, off by one at most, what is left is exact
    const V a = abs(x), b = abs(y), q = trunc(a / b);
    const auto far = !(q < splat<V>(sizeof(elem<V>) == 4 ? 0x1p23f : 0x1p52)) | !(b < splat<V>((elem<V>)__builtin_inff()));
    V r = fma(-q, b, a);
    r = copysign(where(r < splat<V>(0), r + b, r), x);
    if (__builtin_expect(!any_lane(far), 1)) return r;
    return where(far, per_lane2([](elem<V> a, elem<V> b) { return libm_fmod(a, b); }, x, y), r);
#else
    return per_lane2([](elem<V> a, elem<V> b) { return libm_fmod(a, b); }, x, y);
#endif
  }
  else return V(x - V(truncdiv(x, y) * y));
}
//@ fmod_by
// These divide by a number: multiplications and shifts.
template <auto D, class V> INLINE V fmod_by(V x) { return V(x - V(truncdiv_by<D>(x) * D)); }
//@ truncdiv_by
template <auto D, class V> INLINE V truncdiv_by(V x) {
  if constexpr (traits<V>::vector && sizeof(elem<V>) == 8 && (D & (D - 1)) != 0) {
#if defined(__AVX512DQ__)
    constexpr i64 exact = 1LL << 52;  // below, the quotient of doubles is never rounded up to a whole number
    if constexpr (sizeof(V) == 64 && D > -exact && D < exact)
      if (!any_lane((uints<V>)(x + splat<V>(exact)) >= splat<uints<V>>(2 * exact)))
        return convert<V>(convert<rebind<V, f64>>(x) / splat<rebind<V, f64>>((f64)D));
#endif
    return per_lane([](elem<V> a) { return elem<V>(a / D); }, x);
  }
  else return V(x / D);
}
//@ remainder_by
template <auto D, class V> INLINE V remainder_by(V x) {
  if constexpr (D > 0 && (D & (D - 1)) == 0) return V(x & elem<V>(D - 1));
  else {
    if constexpr (D > 0 && traits<V>::vector && sizeof(elem<V>) == 8)  // positions, mostly, which are in range
      if (!any_lane((uints<V>)x >= splat<uints<V>>(D))) return x;
    return V(x - V(floordiv_by<D>(x) * D));
  }
}
//@ floordiv_by
template <auto D, class V> INLINE V floordiv_by(V x) {
  constexpr auto log = [] { int n = 0; for (auto d = D; d > 1; d /= 2) ++n; return n; };
  if constexpr (D > 0 && (D & (D - 1)) == 0) return V(x >> log());
  else if constexpr (elem<V>(-1) > 0) return truncdiv_by<D>(x);
  else {
    const V q = truncdiv_by<D>(x), m = V(x - V(q * D));
    return where(D < 0 ? m > 0 : m < 0, V(q - 1), q);
  }
}
//@ libm_fmod
INLINE f32 libm_fmod(f32 a, f32 b) { return __builtin_fmodf(a, b); }
INLINE f64 libm_fmod(f64 a, f64 b) { return __builtin_fmod(a, b); }
//@ remainder
// The sign of the divisor, as Python's %.
template <class V> INLINE V remainder(V a, V b) {
  const V m = fmod(a, b), zero = splat<V>(0);
  return where((m != zero) & ((b < zero) != (m < zero)), V(m + b), m);
}
//@ truncdiv
// Integer division towards zero; of a zero divisor anything (it has been checked).
template <class V> INLINE V truncdiv(V x, V y) {
  if constexpr (is_float<V>) return trunc(x / y);
  else if constexpr (traits<V>::vector) return quotient(x, y);
  else return quotient_of(x, y);
}
//@ quotient_of
template <class V> INLINE V quotient_of(V x, V y) {
  if (y == 0) return V(0);
  if (V(-1) < 0 && y == V(-1)) return V(0 - (typename int_of<sizeof(V)>::utype)x);
  return V(x / y);
}
//@ quotient
// Lanes as floats: where those have more bits than the dividend, a rounded quotient is never the next whole number.
template <class V, class F> INLINE V quotient_in(V x, V y) {
  constexpr int lanes = traits<V>::lanes;
  typedef vec<elem<F>, lanes> W;
  typedef rebind<W, typename int_of<sizeof(elem<F>)>::type> I;  // as what is no quotient in V is cut to it
  if constexpr (sizeof(W) > sizeof(F)) {
    typedef vec<elem<V>, lanes / 2> H;
    H h[2], d[2];
    __builtin_memcpy(h, &x, sizeof x);
    __builtin_memcpy(d, &y, sizeof y);
    for (int i = 0; i < 2; ++i) h[i] = quotient_in<H, F>(h[i], d[i]);
    __builtin_memcpy(&x, h, sizeof x);
    return x;
  } else return convert<V>(convert<I>(convert<W>(x) / convert<W>(y)));
}
template <class V> INLINE V quotient(V x, V y) {
#if defined(__AVX512DQ__)
  constexpr int bytes = 64;
#else
  constexpr int bytes = sizeof(elem<V>) == 8 ? 0 : 32;
#endif
  if constexpr (sizeof(elem<V>) <= 2) return quotient_in<V, vec<f32, bytes / 4>>(x, y);
  else if constexpr (sizeof(elem<V>) == 4) return quotient_in<V, vec<f64, bytes / 8>>(x, y);
  else {
    const auto far = [](V v) { return elem<V>(-1) > 0 ? v >= 1ll << 51 : bits<uints<V>>(v + (1ll << 51)) >= 1ull << 52; };
    if constexpr (bytes != 0) if (__builtin_expect(!any_lane(far(x) | far(y)), 1)) return quotient_in<V, vec<f64, 8>>(x, y);
    return per_lane2([](elem<V> a, elem<V> b) { return quotient_of(a, b); }, x, y);
  }
}
//@ floordiv
// Rounded down, as Python's //.
template <class V> INLINE V floordiv(V a, V b) {
  const V zero = splat<V>(0);
  if constexpr (is_float<V>) {
    const V m = fmod(a, b), whole = (a - m) / b;
    const V d = where((m != zero) & ((b < zero) != (m < zero)), whole - splat<V>(1), whole), low = floor(d);
    const V r = where(d - low > splat<V>((elem<V>)0.5), low + splat<V>(1), low);
    return where(b == zero, a / b, where(d == zero, copysign(zero, a / b), r));
  } else {
    const V q = truncdiv(a, b), m = V(a - V(q * b));
    return where((m != zero) & ((b < zero) != (m < zero)) & (b != zero), V(q - splat<V>(1)), q);
  }
}
//@ sign
template <class V> INLINE V sign(V x) {
  const V zero = splat<V>(0), one = splat<V>(1);
  return where(x > zero, one, where(x < zero, V(zero - one), zero));
}
//@ signbit
template <class V> INLINE auto signbit(V x) {
  if constexpr (is_float<V>) return bits<ints<V>>(x) < splat<ints<V>>(0); else return x < splat<V>(0);
}
//@ isnan
template <class V> INLINE auto isnan(V x) { return x != x; }
//@ isinf
template <class V> INLINE auto isinf(V x) { return abs(x) == splat<V>((elem<V>)__builtin_inff()); }
//@ isfinite
template <class V> INLINE auto isfinite(V x) { return abs(x) < splat<V>((elem<V>)__builtin_inff()); }
//@ lshift
// Shifting by a negative amount or by the width and more gives 0.
template <class V> INLINE V lshift(V x, V n) {
  typedef uints<V> U;
  const U width = splat<U>(8 * sizeof(elem<V>)), k = bits<U>(n);
  return where(k < width, bits<V>(U(bits<U>(x) << where(k < width, k, splat<U>(0)))), splat<V>(0));
}
//@ rshift
// Arithmetic; shifting by a negative amount or by the width and more leaves the sign.
template <class V> INLINE V rshift(V x, V n) {
  typedef uints<V> U;
  const U top = splat<U>(8 * sizeof(elem<V>) - 1), k = bits<U>(n);
  return V(x >> bits<V>(where(k < top, k, top)));
}
//@ logical_not
template <class V> INLINE auto logical_not(V x) { if constexpr (same<V, bool>::value) return !x; else return x == splat<V>(0); }
//@ truth
// A boolean (or lanes 0 and -1) from any number.
template <class V> INLINE auto truth(V x) { if constexpr (same<V, bool>::value) return x; else return x != splat<V>(0); }
//@ logical_and
template <class A, class B> INLINE auto logical_and(A a, B b) {
  if constexpr (traits<A>::vector) return truth(a) & convert<decltype(truth(a))>(truth(b));
  else if constexpr (traits<B>::vector) return truth(b) & convert<decltype(truth(b))>(truth(a));
  else return bool(truth(a) & truth(b));
}
//@ logical_or
template <class A, class B> INLINE auto logical_or(A a, B b) {
  if constexpr (traits<A>::vector) return truth(a) | convert<decltype(truth(a))>(truth(b));
  else if constexpr (traits<B>::vector) return truth(b) | convert<decltype(truth(b))>(truth(a));
  else return bool(truth(a) | truth(b));
}
//@ logical_xor
template <class A, class B> INLINE auto logical_xor(A a, B b) {
  if constexpr (traits<A>::vector) return truth(a) ^ convert<decltype(truth(a))>(truth(b));
  else if constexpr (traits<B>::vector) return truth(b) ^ convert<decltype(truth(b))>(truth(a));
  else return bool(truth(a) ^ truth(b));
}
//@ where_bool
// where() for booleans; the lanes of vectors are those of To.
template <class To, class M, class A, class B> INLINE To where_bool(M m, A a, B b) {
  const To c = convert<To>(m);
  return (c & convert<To>(a)) | (~c & convert<To>(b));
}
INLINE bool where_bool(bool m, bool a, bool b) { return m ? a : b; }  // no template: To must not be taken for M
