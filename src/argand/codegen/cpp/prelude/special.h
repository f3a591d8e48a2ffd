// Special functions of floats, in vectors of doubles, whose error is far below a float's last place; those of doubles are the
// library's. The fits were made for this file (least squares of the relative error at Chebyshev's points: at most 2^-34).
//@ sine_of_turns
// sin(pi f) for |f| <= 1/2.
template <class V> INLINE V sine_of_turns(V f) {
  return f * horner(f * f,
    5.392664662608125e-10, -2.2948428997269856e-08, 7.952054001475508e-07, -2.1915353447830204e-05,
    0.00046630280576761234, -0.007370430945714348, 0.08214588661112819, -0.5992645293207919, 2.550164039877345,
    -5.167712780049969, 3.141592653589793);
}
//@ cosine_of_turns
// cos(pi f) for |f| <= 1/2.
template <class V> INLINE V cosine_of_turns(V f) {
  return horner(f * f,
    3.6047307974624982e-09, -1.387895246221376e-07, 4.303069587032944e-06, -0.00010463810492484565,
    0.001929574309403922, -0.02580689139001405, 0.23533063035889312, -1.3352627688545893, 4.058712126416768,
    -4.934802200544679, 1.0);
}
//@ product_of_8
// x (x + 1) ... (x + 7)
template <class V> INLINE V product_of_8(V x) {
  return x * horner(x, 1.0, 28.0, 322.0, 1960.0, 6769.0, 13132.0, 13068.0, 5040.0);
}
//@ slope_of_8
// The derivative of product_of_8.
template <class V> INLINE V slope_of_8(V x) {
  return horner(x, 8.0, 196.0, 1932.0, 9800.0, 27076.0, 39396.0, 26136.0, 5040.0);
}
//@ lgamma
// Stirling's series from 8 on; smaller numbers are moved there, negative ones reflected.
template <class V> INLINE V lgamma(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = abs(x), eight = splat<W>(8), inf = splat<W>(__builtin_inf());
    const auto near = a < eight, below = x < splat<W>(0);
    const W z = where(near, a + eight, a), r = splat<W>(1) / z, p = where(near, product_of_8(a), splat<W>(1));
    const W tail = r * horner(r * r,
      0.00641025641025641, -0.0019175269175269176, 0.0008417508417508417, -0.0005952380952380953,
      0.0007936507936507937, -0.002777777777777778, 0.08333333333333333);
    const W far = fma(z - splat<W>(0.5), log(z), splat<W>(0.9189385332046727) - z) + tail;
    const W sine = abs(sine_of_turns(x - round(x)));
    const W q = log(where(below, splat<W>(0x1.921fb54442d18p+1) * p / (a * sine), p)), y = far - q;
    const auto zero = (x == splat<W>(1)) | (x == splat<W>(2));
    return where(a == inf, inf, where(zero, splat<W>(0), where(below, -y, y)));
  }, x);
}
//@ digamma
template <class V> INLINE V digamma(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W one = splat<W>(1), zero = splat<W>(0), eight = splat<W>(8), inf = splat<W>(__builtin_inf());
    const auto below = x < zero;
    const W a = where(below, one - x, x), f = x - round(x);
    const auto near = a < eight;
    const W z = where(near, a + eight, a), r = one / z, s = r * r;
    const W tail = s * horner(s,
      0.08333333333333333, -0.021092796092796094, 0.007575757575757576, -0.004166666666666667, 0.003968253968253968,
      -0.008333333333333333, 0.08333333333333333);
    const W moved = where(near, slope_of_8(a) / product_of_8(a), zero);
    const W y = where(a == inf, inf, log(z) - splat<W>(0.5) * r - tail - moved);
    const W turned = where(below, splat<W>(0x1.921fb54442d18p+1) * cosine_of_turns(f) / sine_of_turns(f), zero);
    const W whole = where(below & ((f == zero) | (a == inf)), splat<W>(__builtin_nan("")), y - turned);
    return where(x == zero, copysign(inf, -x), whole);
  }, x);
}
//@ bend_of_8
// The second derivative of product_of_8.
template <class V> INLINE V bend_of_8(V x) {
  return horner(x, 56.0, 1176.0, 9660.0, 39200.0, 81228.0, 78792.0, 26136.0);
}
//@ trigamma
// The derivative of digamma, by those of its series, its shift and its reflection.
template <class V> INLINE V trigamma(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W one = splat<W>(1), zero = splat<W>(0), eight = splat<W>(8), inf = splat<W>(__builtin_inf());
    const auto below = x < zero;
    const W a = where(below, one - x, x), f = x - round(x);
    const auto near = a < eight;
    const W z = where(near, a + eight, a), r = one / z, s = r * r;
    const W tail = r + s * fma(r, horner(s,
      1.1666666666666667, -0.2531135531135531, 0.07575757575757576, -0.03333333333333333, 0.023809523809523808,
      -0.03333333333333333, 0.16666666666666666), splat<W>(0.5));
    const W p = product_of_8(a), q = slope_of_8(a) / p;
    const W y = tail + where(near, q * q - bend_of_8(a) / p, zero);
    const W turn = splat<W>(0x1.921fb54442d18p+1) / sine_of_turns(f);
    return where((x == zero) | (below & (f == zero)), inf, where(below, turn * turn - y, y));
  }, x);
}
//@ erfinv_double
// erfinv(x) of -1 < x < 1, given 1 - |x|: x P(w) with w = -log(1 - x^2), or with its root where that is large.
template <class V> INLINE V erfinv_double(V x, V rest) {
  const V w = -log_double(rest * (splat<V>(2) - rest)), s = sqrt(w);
  const V middle = horner(fma(w, splat<V>(0.32), splat<V>(-1)),
    -8.736544285936796e-07, 6.469392391299931e-07, 6.765282222105814e-06, -1.3005593035587056e-05,
    -1.472723151929436e-05, 9.46795314081111e-05, -0.00011700885903704106, -0.00026496278229359345,
    0.001232505616456377, -0.0012715551933154534, -0.004137314321872037, 0.017808345395779697, -0.022604447750349314,
    -0.05892256634857796, 0.7504943200939376, 1.6536545626773835);
  const V outer = horner((s - splat<V>(3.375)) / splat<V>(0.875),
    2.871342492362271e-07, 1.8821981655213814e-06, -8.514452343749766e-06, 7.615523160426987e-06,
    2.5333323615473977e-05, -0.00011972716695359028, 0.00029689166501768174, -0.0005564608869130977,
    0.0009590799826499617, -0.001832279548997805, 0.0031911804292509755, 0.880637999904119, 3.209620135667397);
  V p = where(w < splat<V>(6.25), middle, outer);
  const auto tail = s > splat<V>(4.25);
  if (__builtin_expect(any_lane(tail), 0))
    p = where(tail, horner((s - splat<V>(7.25)) / splat<V>(3),
      1.0402277300792003e-06, -9.12232470467737e-07, -3.034873489375664e-06, 1.7546872618305448e-06,
      5.8650863574760125e-06, -6.087492166978695e-06, 4.6152587626590854e-06, -1.6451039476075182e-05,
      4.170180679105519e-05, -8.642160296747046e-05, 0.0001698627186908972, -0.00029436577427767246,
      0.0003481649216183837, 0.0003082898627078187, -0.0045531591674361094, 3.0250224625286526, 7.121136636611191), p);
  return x * p;
}
//@ erfinv
template <class V> INLINE V erfinv(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = abs(x), one = splat<W>(1), end = copysign(splat<W>(__builtin_inf()), x);
    return where(a < one, erfinv_double(x, one - a), where(a == one, end, splat<W>(__builtin_nan(""))));
  }, x);
}
//@ ndtri
template <class V> INLINE V ndtri(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W one = splat<W>(1), zero = splat<W>(0), y = fma(splat<W>(2), x, -one), rest = raw_min(x, one - x);
    const W r = splat<W>(0x1.6a09e667f3bcdp+0) * erfinv_double(y, rest + rest);
    const W end = where((x == zero) | (x == one), copysign(splat<W>(__builtin_inf()), y), splat<W>(__builtin_nan("")));
    return where((x > zero) & (x < one), r, end);
  }, x);
}
//@ erfcx_double
// exp(x^2) erfc(x) of x >= 0: t Q(t) with t = 1 / (1 + 0.4 x).
template <class V> INLINE V erfcx_double(V x) {
  const V t = splat<V>(1) / fma(x, splat<V>(0.4), splat<V>(1));
  return t * horner(t + t - splat<V>(1),
    1.1104261632412566e-07, 2.8526081850950546e-07, -1.1258577107785878e-06, -1.9754537744551343e-06,
    7.525814997872524e-06, 7.211030762652516e-06, -4.5209803987754654e-05, -2.303087548275223e-05,
    0.00028115058986023133, 0.00017560191819914443, -0.001927531945664444, -0.003357205682757281,
    0.011344622186024991, 0.06850045730339138, 0.18156564656138105, 0.3218607397907773, 0.4216127281230203);
}
//@ erfcx
template <class V> INLINE V erfcx(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W e = exp_double(x * x), r = erfcx_double(abs(x));
    return where(x < splat<W>(0), e + e - r, r);
  }, x);
}
//@ log_ndtr
template <class V> INLINE V log_ndtr(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W half = splat<W>(0.5), s = x * x * half, r = half * erfcx_double(abs(x) * splat<W>(0x1.6a09e667f3bcdp-1));
    const W c = exp_double(-s) * r;
    const W near = log1p(where(x < splat<W>(0), c - splat<W>(1), -c));
    return where(x < splat<W>(-1), log_double(r) - s, near);
  }, x);
}
//@ bessel_i
// exp(-|x|) I0(x) or exp(-|x|) I1(x), or without the exponential, and then beyond what that is finite for what eager says.
template <int ORDER, bool SCALED, class V> INLINE V bessel_i(V x) {
  static_assert(same<elem<V>, f32>::value, "of floats");
  return in_double([](auto x) {
    typedef decltype(x) W;
    const W a = abs(x), u = fma(a, splat<W>(0.25), splat<W>(-1)), v = splat<W>(16) / a - splat<W>(1);
    W near, far;
    if constexpr (ORDER == 0) {
      near = horner(u,
        -1.552786917630687e-05, 4.973603603778461e-05, -5.417212695546427e-05, 9.983104830261613e-05,
        -0.00039082727038768084, 0.0009416136536070122, -0.0018131567202417914, 0.0035466258104827134,
        -0.006786366172068268, 0.011996989661232143, -0.01968711534156864, 0.030165626747113938, -0.04298429763240395,
        0.05677955911366063, -0.06954153058279272, 0.07927492512907697, -0.08496334546386812, 0.08734343438318214,
        -0.08904344302318008, 0.09451562811384834, -0.11300432686383707, 0.20700192122561922);
      far = horner(v,
        -8.035387604973495e-09, 1.5221280810884885e-09, 4.9699486641242775e-08, 1.056351682668342e-07,
        2.937725596113882e-07, 1.4780183948560264e-06, 1.1143582254021734e-05, 0.00013621678371111744,
        0.003360551959226033, 0.402176509431104);
    } else {
      near = a * horner(u,
        -1.5830095799925981e-06, 5.905784010847275e-06, -9.057515894208475e-06, 1.7957620043455925e-05,
        -5.987169292139084e-05, 0.00015647060981343342, -0.0003441238384937729, 0.0007382998948634238,
        -0.0015362285030988024, 0.0030087642307336524, -0.005535933389748835, 0.009583055231944755,
        -0.015570888893699304, 0.023686182402150428, -0.033671430766593964, 0.04467455574082885, -0.05528003201726838,
        0.06376740454450504, -0.06848260651490931, 0.06805759989506222, -0.06112433802586101, 0.044687709875642856);
      far = horner(v,
        8.41774096550632e-09, -2.4285565767485137e-09, -5.471427315287608e-08, -1.178750573910895e-07,
        -3.4422495550373523e-07, -1.828726429781628e-06, -1.5039213842865795e-05, -0.00021923651824206988,
        -0.009749577161620934, 0.38939845904068643);
    }
    W r = where(a <= splat<W>(8), near, far / sqrt(a));
    const W inf = splat<W>(__builtin_inf()), nan = splat<W>(__builtin_nan(""));
    if constexpr (!SCALED) r = where(a == inf, nan, where(a > splat<W>(88.7228394), inf, r * exp_double(a)));
    return ORDER == 0 ? r : where(x < splat<W>(0), -r, r);
  }, x);
}
//@ modified_bessel_i0
template <class V> INLINE V modified_bessel_i0(V x) { return bessel_i<0, false>(x); }
//@ i0e
template <class V> INLINE V i0e(V x) { return bessel_i<0, true>(x); }
//@ modified_bessel_i1
template <class V> INLINE V modified_bessel_i1(V x) { return bessel_i<1, false>(x); }
//@ i1e
template <class V> INLINE V i1e(V x) { return bessel_i<1, true>(x); }
