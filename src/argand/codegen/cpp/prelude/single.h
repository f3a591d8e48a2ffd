// Functions of floats. Most are computed in vectors of doubles: their error is a few thousandths of a float's last place. None
// needs the C library, which takes one lane at a time. Functions of doubles are the C library's. The fits were made for this
// file (interpolation at Chebyshev's points); the relative errors stated hold on the reduced interval.
//@ in_double
// f, a function of doubles, of floats: half of a vector's floats at a time fill a vector of doubles of its size.
template <class V, class F> INLINE V in_double(F f, V x) {
  if constexpr (traits<V>::vector) {
    constexpr int lanes = traits<V>::lanes / 2;
    V r;
    for (int half = 0; half < 2; ++half) {
      vec<f32, lanes> a;
      __builtin_memcpy(&a, (const f32*)&x + half * lanes, sizeof a);
      a = convert<vec<f32, lanes>>(f(convert<vec<f64, lanes>>(a)));
      __builtin_memcpy((f32*)&r + half * lanes, &a, sizeof a);
    }
    return r;
  } else return (f32)f((f64)x);
}
//@ in_double2
template <class V, class F> INLINE V in_double2(F f, V x, V y) {
  if constexpr (traits<V>::vector) {
    constexpr int lanes = traits<V>::lanes / 2;
    V r;
    for (int half = 0; half < 2; ++half) {
      vec<f32, lanes> a, b;
      __builtin_memcpy(&a, (const f32*)&x + half * lanes, sizeof a);
      __builtin_memcpy(&b, (const f32*)&y + half * lanes, sizeof b);
      a = convert<vec<f32, lanes>>(f(convert<vec<f64, lanes>>(a), convert<vec<f64, lanes>>(b)));
      __builtin_memcpy((f32*)&r + half * lanes, &a, sizeof a);
    }
    return r;
  } else return (f32)f((f64)x, (f64)y);
}
//@ log2_normal
// log2(x) of a normal positive double: 2 atanh(f / (2 + f)) / log(2), the relative error below 2^-39.
template <class V> INLINE V log2_normal(V x) {
  typedef ints<V> I;
  const I i = bits<I>(x), k = (i - splat<I>(0x3fe6a09e667f3bcdLL)) >> 52;
  const V f = bits<V>(i - (k << 52)) - splat<V>(1), s = f / (splat<V>(2) + f);
  const V p = horner(s * s, 0.22195308321368667, 0.2623081892525388, 0.3205988979753252, 0.4121985831111324,
    0.5770780163555853, 0.9617966939259756, 2.8853900817779268);
  return fma(s, p, convert<V>(k));
}
//@ power_of_2
// 2^t, the relative error below 2^-31; zero below the range of float, infinite above it.
template <class V> INLINE V power_of_2(V t) {
  const V c = clamp_keep_nan(t, -200.0, 200.0), shift = splat<V>(0x1.8p52), n = (c + shift) - shift, r = c - n;
  const V p = horner(r, 1.3215486790144305e-06, 1.5252733804059838e-05, 0.00015403530393381606, 0.0013333558146428441,
    0.009618129107628477, 0.055504108664821576, 0.2402265069591007, 0.6931471805599453);
  return scale2(fma(p, r, splat<V>(1)), n);
}
//@ pow_double
// x^y of floats in doubles, whose error is far below a float's last place. `common`: x is positive, x and y are finite.
template <class V> INLINE V pow_double(V x, V y, bool common) {
  if (__builtin_expect(common, 1)) return power_of_2(y * log2_normal(x));
  const V zero = splat<V>(0), one = splat<V>(1), inf = splat<V>(__builtin_inf()), size = abs(x);
  const V l = where(size == zero, -inf, where(size < inf, log2_normal(size), size));
  const auto odd = (trunc(y) == y) & (floor(y * splat<V>(0.5)) != y * splat<V>(0.5));
  V r = power_of_2(where((size == one) & (abs(y) == inf), zero, V(y * l)));
  r = where(odd, copysign(r, x), r);
  r = where((x < zero) & (size < inf) & (trunc(y) != y), splat<V>(__builtin_nan("")), r);
  return where((x == one) | (y == zero), one, r);
}
//@ pow
// float: at most 0.51 ulp. double: the C library's, per lane.
template <class V> INLINE V pow(V x, V y) {
  if constexpr (same<elem<V>, f32>::value) {
    const V inf = splat<V>(__builtin_inff());
    const auto rare = (x <= splat<V>(0)) | (x != x) | (x == inf) | (y != y) | (abs(y) == inf);
    const bool common = !any_lane(rare);
    return in_double2([=](auto a, auto b) { return pow_double(a, b, common); }, x, y);
  }
  else if constexpr (same<elem<V>, f64>::value) return per_lane2([](f64 a, f64 b) { return __builtin_pow(a, b); }, x, y);
  else return per_lane2([](elem<V> a, elem<V> b) {
    if (b < 0) return elem<V>(a == 1 ? 1 : a == elem<V>(-1) ? (b % 2 ? -1 : 1) : 0);
    u64 r = 1, base = (u64)a;
    for (u64 k = (u64)b; k; k >>= 1, base *= base) if (k & 1) r *= base;
    return elem<V>(r);
  }, x, y);
}
//@ log_double
// log(x) of a normal positive double.
template <class V> INLINE V log_double(V x) { return splat<V>(0x1.62e42fefa39efp-1) * log2_normal(x); }
//@ exp_double
// exp(x) within the range of float, with something to spare.
template <class V> INLINE V exp_double(V x) { return power_of_2(x * splat<V>(0x1.71547652b82fep+0)); }
//@ atan_ratio
// atan(n / d), neither negative, not both zero or infinite: of a quotient below tan(pi / 8), the relative error below 2^-35.
template <class V> INLINE V atan_ratio(V n, V d) {
  const auto large = n > d * splat<V>(2.414213562373095), middle = n > d * splat<V>(0.41421356237309503);
  const V t = where(large, -d, where(middle, n - d, n)) / where(large, n, where(middle, n + d, d)), z = t * t;
  const V p = horner(z, 0.04707002731977081, -0.0845602938353189, 0.11040460424913914, -0.14281586455512105,
    0.1999988377323015, -0.33333332096528895, 0.9999999999783765);
  const V start = where(large, splat<V>(0x1.921fb54442d18p+0), where(middle, splat<V>(0x1.921fb54442d18p-1), splat<V>(0)));
  return fma(t, p, start);
}
//@ tan
// float: at most 3.2 ulp up to |x| = 30000, beyond that the C library's, per lane.
template <class V> INLINE V tan(V x) {
  if constexpr (same<elem<V>, f32>::value) {
    V s, c;
    const auto odd = (sin_and_cos(x, s, c) & splat<ints<V>>(1)) != splat<ints<V>>(0);
    const V r = where(x == splat<V>(0), x, V(where(odd, V(-c), s) / where(odd, s, c)));
    const auto far = abs(x) > splat<V>(30000.0f);
    if (__builtin_expect(!any_lane(far), 1)) return r;
    return where(far, per_lane([](f32 e) { return __builtin_tanf(e); }, x), r);
  } else return per_lane([](f64 e) { return __builtin_tan(e); }, x);
}
//@ asin_half
// asin(s) for s = sqrt(z), at most a half.
template <class V> INLINE V asin_half(V s, V z) {
  return fma(horner(z, 3.80939621e-2f, 2.6550663e-2f, 4.50018941e-2f, 7.49885296e-2f, 1.66666724e-1f) * z, s, s);
}
//@ asin
// float: at most 2 ulp.
template <class V> INLINE V asin(V x) {
  if constexpr (same<elem<V>, f32>::value) {
    const V a = abs(x), half = splat<V>(0.5f);
    const auto large = a > half;
    const V z = where(large, fma(-half, a, half), V(a * a)), r = asin_half(where(large, sqrt(z), a), z);
    return copysign(where(large, fma(splat<V>(-2), r, splat<V>(0x1.921fb6p+0f)) - splat<V>(0x1.777a5cp-25f), r), x);
  } else return per_lane([](f64 e) { return __builtin_asin(e); }, x);
}
//@ acos
// float: at most 2 ulp.
template <class V> INLINE V acos(V x) {
  if constexpr (same<elem<V>, f32>::value) {
    const V a = abs(x), half = splat<V>(0.5f);
    const auto large = a > half;
    const V z = where(large, fma(-half, a, half), V(a * a)), r = asin_half(where(large, sqrt(z), a), z), twice = r + r;
    const V middle = (splat<V>(0x1.921fb6p+0f) - copysign(r, x)) - splat<V>(0x1.777a5cp-25f);
    const V behind = (splat<V>(0x1.921fb6p+1f) - twice) - splat<V>(0x1.777a5cp-24f);
    return where(large, where(x < splat<V>(0), behind, twice), middle);
  } else return per_lane([](f64 e) { return __builtin_acos(e); }, x);
}
//@ atan
// float: at most 2 ulp.
template <class V> INLINE V atan(V x) {
  if constexpr (same<elem<V>, f32>::value) {
#if defined(TABLES)
    const V a = abs(x), one = splat<V>(1);
    const auto large = a > one;
    const V r = odd_by_table(where(large, one / a, a), 1.0f, 31.0f, atan_table);
    return copysign(where(large, (splat<V>(0x1.921fb6p+0f) - r) - splat<V>(0x1.777a5cp-25f), r), x);
#else
    return in_double([](auto x) { return copysign(atan_ratio(abs(x), splat<decltype(x)>(1)), x); }, x);
#endif
  } else return per_lane([](f64 e) { return __builtin_atan(e); }, x);
}
//@ atan2
template <class V> INLINE V atan2(V y, V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double2([](auto y, auto x) {
    typedef decltype(x) W;
    const W a = abs(y), b = abs(x), one = splat<W>(1), zero = splat<W>(0), inf = splat<W>(__builtin_inf());
    const auto none = (a == zero) & (b == zero), all = (a == inf) & (b == inf);
    const W r = atan_ratio(where(all, one, a), where(none | all, one, b));
    return copysign(where(signbit(x), splat<W>(0x1.921fb54442d18p+1) - r, r), y);
  }, y, x);
  else return per_lane2([](f64 a, f64 b) { return __builtin_atan2(a, b); }, y, x);
}
//@ sinh
template <class V> INLINE V sinh(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = abs(x), e = exp_double(a), z = x * x, half = splat<W>(0.5);
    const W p = a * horner(z, 1.984126984126984e-4, 8.333333333333333e-3, 1.6666666666666666e-1, 1.0);
    return copysign(where(a < splat<W>(0.125), p, half * e - half / e), x);
  }, x);
  else {  // at most 2.5 ulp, beyond 700 more: half of the argument, whose exponential does not overflow first
    const V a = abs(x), m = expm1(a), e = exp(splat<V>(0.5) * a);
    return copysign(where(a < splat<V>(700.0), splat<V>(0.5) * (m + m / (m + splat<V>(1))), splat<V>(0.5) * e * e), x);
  }
}
//@ cosh
template <class V> INLINE V cosh(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W e = exp_double(x), half = splat<W>(0.5);
    return fma(half, e, half / e);
  }, x);
  else {
    const V a = abs(x), e = exp(a), h = exp(splat<V>(0.5) * a), half = splat<V>(0.5);
    return where(a < splat<V>(700.0), fma(half, e, half / e), half * h * h);
  }
}
//@ asinh
template <class V> INLINE V asinh(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = abs(x), z = x * x, l = log_double(a + sqrt(z + splat<W>(1)));
    const W p = a * horner(z, 3.038194444444444e-2, -4.464285714285714e-2, 7.5e-2, -1.6666666666666666e-1, 1.0);
    return copysign(where(a < splat<W>(0.125), p, where(a < splat<W>(__builtin_inf()), l, a)), x);
  }, x);
  else return per_lane([](f64 e) { return __builtin_asinh(e); }, x);
}
//@ acosh
template <class V> INLINE V acosh(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W one = splat<W>(1), inf = splat<W>(__builtin_inf()), l = log_double(x + sqrt((x - one) * (x + one)));
    return where((x >= one) & (x < inf), l, where(x == inf, x, splat<W>(__builtin_nan(""))));
  }, x);
  else return per_lane([](f64 e) { return __builtin_acosh(e); }, x);
}
//@ atanh
template <class V> INLINE V atanh(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W one = splat<W>(1), a = abs(x), z = x * x, l = splat<W>(0.5) * log_double((one + a) / (one - a));
    const W p = a * horner(z, 1.1111111111111111e-1, 1.4285714285714285e-1, 0.2, 3.3333333333333333e-1, 1.0);
    const W r = where(a < splat<W>(0.125), p, l), end = splat<W>(__builtin_inf());
    return copysign(where(a < one, r, where(a == one, end, splat<W>(__builtin_nan("")))), x);
  }, x);
  else {
    const V a = abs(x), half = splat<V>(0.5);
    return copysign(half * log1p((a + a) / (splat<V>(1) - a)), x);
  }
}
//@ erfc
// exp(-x^2) t Q(t) with t = 1 / (1 + 0.4 |x|), the relative error below 2^-37.
template <class V> INLINE V erfc(V x) {
  if constexpr (same<elem<V>, f32>::value) return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = raw_min(splat<W>(10.5), abs(x)), t = splat<W>(1) / fma(a, splat<W>(0.4), splat<W>(1));
    const W q = horner(t, -0.016252247906124926, 0.1292100300018004, -0.4425825121208351, 0.8382067294801738,
      -0.9445264864070642, 0.6768788427756547, -0.3913037672029721, 0.16631657435933325, 0.024191054205329177,
      0.13055461974306293, 0.1702141060750457, 0.20774857904116137, 0.22566845105178948, 0.2256760269007849);
    const W r = exp_double(-a * a) * t * q;
    return where(x < splat<W>(0), splat<W>(2) - r, r);
  }, x);
  else return per_lane([](f64 e) { return __builtin_erfc(e); }, x);
}
