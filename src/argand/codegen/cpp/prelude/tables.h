// Functions of floats that look up numbers: with 512-bit vectors one instruction does so for each lane. The fits were made for
// this file (interpolation at Chebyshev's points).
//@ looked_up
#if defined(__AVX512F__) && !defined(__clang__) && __GNUC__ >= 12
#define TABLES
// The number in the table's place that the last five bits of i are.
template <class I> INLINE auto looked_up(I i, const f32* table) {
  if constexpr (!traits<I>::vector) return table[i & 31];
  else return __builtin_ia32_vpermt2varps512_mask(i, load<vec<f32, 16>>(table), load<vec<f32, 16>>(table + 16), (u16)-1);
}
// Short vectors in the lower lanes of one register, and back: through memory, a load would wait for a shorter store.
template <class V, int... I> INLINE vec<f32, 16> widened(V x, sequence<I...>) {
  return __builtin_shufflevector(x, x, (I < traits<V>::lanes ? I : -1)...);
}
template <int... I> INLINE vec<f32, sizeof...(I)> lower_lanes(vec<f32, 16> x, sequence<I...>) {
  return __builtin_shufflevector(x, x, I...);
}
template <class V, class F> INLINE V in_whole_registers(F f, V x) {
  if constexpr (!traits<V>::vector || sizeof(V) == 64) return f(x);
  else return lower_lanes(f(widened(x, numbers<16>{})), numbers<traits<V>::lanes>{});
}
#endif
//@ exp_by_table
#if defined(TABLES)
alignas(64) static const f32 powers[32] = {  // 2^(k / 32)
  1.0f, 1.0218972f, 1.04427373f, 1.06714046f, 1.09050775f, 1.1143868f, 1.13878858f, 1.1637249f, 1.18920708f,
  1.21524739f, 1.24185777f, 1.26905096f, 1.29683959f, 1.32523668f, 1.35425556f, 1.38390994f, 1.41421354f,
  1.44518077f, 1.47682619f, 1.50916445f, 1.54221082f, 1.5759809f, 1.61049032f, 1.64575553f, 1.68179286f,
  1.71861935f, 1.75625217f, 1.79470909f, 1.8340081f, 1.87416768f, 1.91520655f, 1.95714414f,
};
// exp(x) = 2^n 2^(k / 32) (1 + q), as `exp` says.
template <class V> INLINE V exp_by_table(V x) {
  return in_whole_registers([](auto x) {
    typedef decltype(x) W;
    const W c = raw_min(splat<W>(89.0f), x), shift = splat<W>(0x1.8p18f), s = fma(c, splat<W>(0x1.715476p+0f), shift), n = s - shift;
    const W r = fma(n, splat<W>(-0x1.7f7d1cp-20f), fma(n, splat<W>(-0x1.62e4p-1f), c)), p = looked_up(bits<ints<W>>(s), powers);
    const W result = fma(p, fma(fma(r, splat<W>(1.66666667e-1f), splat<W>(0.5f)), r * r, r), p);
    if constexpr (traits<W>::vector) {
      constexpr int not_less = 0x15;  // or NaN
      const auto kept = __builtin_ia32_cmpps512_mask(x, splat<W>(-104.5f), not_less, (u16)-1, 4);
      return __builtin_ia32_scalefps512_mask(result, n, W{}, kept, 4);
    } else return x < -104.5f ? 0.0f : scale2(result, floor(n));
  }, x);
}
#endif
//@ odd_by_table
// Odd functions with limits: f(x) = x G(|x|), and of G there are 32 polynomials, around equally far points.
#if defined(TABLES)
// Arguments: beyond `last`, where x G(x) is exactly 1, the result is; `scale` points a unit; coefficients of scale |x| - n, the
// highest first.
template <class V, int TERMS> INLINE V odd_by_table(V x, f32 last, f32 scale, const f32 (&table)[TERMS][32]) {
  return in_whole_registers([&](auto x) {
    typedef decltype(x) W;
    const W c = clamp_keep_nan(x, -last, last), a = abs(c), shift = splat<W>(0x1.8p23f), s = fma(a, splat<W>(scale), shift);
    const W t = fma(a, splat<W>(scale), shift - s);
    const auto of = [&](int k) { return looked_up(bits<ints<W>>(s), table[k]); };
    W p = fma(fma(fma(fma(of(0), t, of(1)), t, of(2)), t, of(3)), t, of(4));
    if constexpr (TERMS > 5) p = fma(p, t, of(5));
    return W(c * p);
  }, x);
}
#endif
//@ erf_table
#if defined(TABLES)
alignas(64) static const f32 erf_table[5][32] = {
  {
    2.7509921e-05f, 2.59974604e-05f, 2.17110974e-05f, 1.53481178e-05f, 7.90021659e-06f, 4.46984188e-07f,
    -6.05159721e-06f, -1.09142557e-05f, -1.38180358e-05f, -1.47921346e-05f, -1.41425226e-05f, -1.23381033e-05f,
    -9.89209366e-06f, -7.26550616e-06f, -4.80738663e-06f, -2.73368005e-06f, -1.13707029e-06f, -1.55323381e-08f,
    6.9269646e-07f, 1.076996e-06f, 1.23022733e-06f, 1.23395614e-06f, 1.15186197e-06f, 1.02896138e-06f,
    8.94143511e-07f, 7.64012611e-07f, 6.46728154e-07f, 5.45184776e-07f, 4.59331005e-07f, 3.87694143e-07f,
    3.2828973e-07f, 2.79107098e-07f,
  },
  {
    -5.25907286e-31f, 0.000107974316f, 0.000204192358f, 0.000278829597f, 0.000325499888f, 0.000342029409f,
    0.000330384733f, 0.000295854406f, 0.000245746807f, 0.000187943209f, 0.000129622189f, 7.63733988e-05f,
    3.17864506e-05f, -2.52301834e-06f, -2.6572241e-05f, -4.15095965e-05f, -4.90937855e-05f, -5.12539809e-05f,
    -4.9780585e-05f, -4.61525087e-05f, -4.14779606e-05f, -3.65129781e-05f, -3.17220802e-05f, -2.73528203e-05f,
    -2.35060579e-05f, -2.01929524e-05f, -1.73762874e-05f, -1.4997624e-05f, -1.29934406e-05f, -1.13036449e-05f,
    -9.87527164e-06f, -8.66345181e-06f,
  },
  {
    -0.00587697141f, -0.00571321044f, -0.00523986062f, -0.00450775772f, -0.0035924043f, -0.00258224644f,
    -0.00156589877f, -0.000620761246f, 0.000195088302f, 0.000846775773f, 0.00132234592f, 0.00162918947f,
    0.00178851828f, 0.0018292896f, 0.00178272475f, 0.00167813827f, 0.00154033734f, 0.00138848473f, 0.00123609311f,
    0.00109173835f, 0.000960111793f, 0.000843121845f, 0.000740867341f, 0.000652401301f, 0.000576273305f,
    0.000510879443f, 0.0004546649f, 0.000406224601f, 0.00036433994f, 0.00032797936f, 0.000296281505f, 0.000268531789f,
  },
  {
    8.54599345e-31f, -0.0116443569f, -0.0226456951f, -0.0324307345f, -0.0405542627f, -0.0467371456f, -0.0508793853f,
    -0.0530486628f, -0.0534491539f, -0.0523782745f, -0.0501799025f, -0.0472016856f, -0.0437616594f, -0.0401267f,
    -0.0365026779f, -0.0330343768f, -0.0298121404f, -0.0268822666f, -0.0242584478f, -0.0219324473f, -0.0198829472f,
    -0.0180822033f, -0.0165006127f, -0.0151095307f, -0.0138827795f, -0.0127972821f, -0.0118331453f, -0.0109734442f,
    -0.0102038812f, -0.00951240584f, -0.00888885837f, -0.00832465012f,
  },
  {
    1.12837923f, 1.12252963f, 1.10530555f, 1.07764506f, 1.04099977f, 0.997185409f, 0.948207498f, 0.896085799f,
    0.842700779f, 0.789678454f, 0.738320112f, 0.689578235f, 0.644070089f, 0.602119207f, 0.563812375f, 0.529061377f,
    0.497661144f, 0.469339281f, 0.44379434f, 0.420722961f, 0.399837226f, 0.380874157f, 0.363599777f, 0.347809434f,
    0.333325982f, 0.319996834f, 0.307690978f, 0.296295762f, 0.28571406f, 0.275861979f, 0.266666651f, 0.258064508f,
  },
};
#endif
//@ tanh_table
#if defined(TABLES)
alignas(64) static const f32 tanh_table[6][32] = {
  {
    2.10362903e-29f, -0.000127071893f, -9.58722303e-05f, -1.13068918e-05f, 2.61963069e-05f, 2.52598584e-05f,
    1.48077088e-05f, 6.75903357e-06f, 2.42363399e-06f, 4.85151588e-07f, -2.45202415e-07f, -4.44699964e-07f,
    -4.38556157e-07f, -3.67904676e-07f, -2.8845048e-07f, -2.19117325e-07f, -1.64101024e-07f, -1.22323343e-07f,
    -9.1263388e-08f, -6.83829597e-08f, -5.15662428e-08f, -3.91819874e-08f, -3.00196596e-08f, -2.31982007e-08f,
    -1.80821935e-08f, -1.42147663e-08f, -1.1267149e-08f, -9.00196007e-09f, -7.24693638e-09f, -5.87629767e-09f,
    -4.79757079e-09f, -3.94227362e-09f,
  },
  {
    0.000877614599f, 0.000506857934f, -0.00010596963f, -0.000364915613f, -0.000305525959f, -0.000168219092f,
    -6.78240685e-05f, -1.55455746e-05f, 6.13587417e-06f, 1.27157246e-05f, 1.29962982e-05f, 1.11408553e-05f,
    8.8869092e-06f, 6.85986652e-06f, 5.22089658e-06f, 3.95756388e-06f, 3.00531224e-06f, 2.29414968e-06f,
    1.76399737e-06f, 1.3677377e-06f, 1.06996208e-06f, 8.44618285e-07f, 6.72722933e-07f, 5.40484621e-07f,
    4.37872473e-07f, 3.57562499e-07f, 2.94177482e-07f, 2.43742875e-07f, 2.0329945e-07f, 1.70626649e-07f,
    1.44045146e-07f, 1.22274827e-07f,
  },
  {
    -2.62953629e-30f, 0.0030174104f, 0.00375557225f, 0.00264912448f, 0.00123691431f, 0.000291990553f,
    -0.000159805786f, -0.000311107782f, -0.00032165536f, -0.000280266016f, -0.000227458018f, -0.000178808783f,
    -0.000138768213f, -0.000107411317f, -8.34024904e-05f, -6.51785376e-05f, -5.13581945e-05f, -4.08392807e-05f,
    -3.27824564e-05f, -2.65627878e-05f, -2.17195811e-05f, -1.7914128e-05f, -1.48969848e-05f, -1.24836288e-05f,
    -1.05367089e-05f, -8.95324411e-06f, -7.6554079e-06f, -6.58390445e-06f, -5.69318081e-06f, -4.94795358e-06f,
    -4.32067554e-06f, -3.78967388e-06f,
  },
  {
    -0.0272098649f, -0.0222940501f, -0.011502035f, -0.00163930131f, 0.00412249379f, 0.00627548294f, 0.00637329137f,
    0.0056152246f, 0.00464485027f, 0.00373563333f, 0.00297387945f, 0.002366381f, 0.00189228554f, 0.00152504712f,
    0.00124046474f, 0.00101885456f, 0.000844999624f, 0.000707412837f, 0.000597509032f, 0.000508886413f,
    0.000436759903f, 0.000377534132f, 0.000328488968f, 0.000287550007f, 0.000253121922f, 0.00022396713f,
    0.000199117436f, 0.000177808804f, 0.000159433563f, 0.000143504483f, 0.000129628083f, 0.000117484306f,
  },
  {
    -1.64346027e-32f, -0.0510363765f, -0.0851951316f, -0.097767584f, -0.0945717171f, -0.083701618f, -0.0708288699f,
    -0.0587661378f, -0.0485015549f, -0.040142104f, -0.0334591232f, -0.0281432215f, -0.0239045732f, -0.0205029063f,
    -0.017749384f, -0.0154991644f, -0.0136422105f, -0.01209505f, -0.0107941506f, -0.00969086122f, -0.00874763355f,
    -0.00793523993f, -0.00723072374f, -0.00661589019f, -0.00607619109f, -0.00559989316f, -0.00517745689f,
    -0.00480106613f, -0.00446426868f, -0.00416170293f, -0.00388888386f, -0.00364203681f,
  },
  {
    1.0f, 0.973649204f, 0.903713405f, 0.810579777f, 0.71345222f, 0.623961449f, 0.546683252f, 0.482013792f,
    0.428542376f, 0.384372294f, 0.347698629f, 0.316998661f, 0.291053683f, 0.268911093f, 0.249832332f, 0.233244941f,
    0.218703195f, 0.205857471f, 0.194431171f, 0.184203431f, 0.174996197f, 0.166664615f, 0.159089804f, 0.152173311f,
    0.145833015f, 0.139999822f, 0.134615287f, 0.129629582f, 0.12499997f, 0.120689638f, 0.11666666f, 0.112903222f,
  },
};
#endif
//@ erf
// float: at most 2.5 ulp. double: the C library's, per lane.
template <class V> INLINE V erf(V x) {
  if constexpr (same<elem<V>, f64>::value) return per_lane([](f64 e) { return __builtin_erf(e); }, x);
#if defined(TABLES)
  else return odd_by_table(x, 3.92794466f, 8, erf_table);
#else
  else {  // 1 - 2^(-x Q(x))
    const V a = raw_min(splat<V>(3.93f), abs(x));
    V p = horner(a, -1.335392661e-5f, 1.697201441e-4f, -9.129895345e-4f, 2.405010574e-3f, -2.314011940e-4f,
      -2.763203092e-2f, 1.482770665e-1f, 9.184476253e-1f, 0.002907035f);
    // 2 / (sqrt(pi) log(2)) = 1.625 + 0.0029...: the product with 1.625 is nearly exact
    V n;
    const V one = splat<V>(1), q = exp2_parts(fma(p, -a, splat<V>(-1.625f) * a), n), s = scale2(one, n);
    return copysign(fma(s, q, s - one), x);
  }
#endif
}
//@ tanh
// At most 2.5 ulp.
template <class V> INLINE V tanh(V x) {
#if defined(TABLES)
  if constexpr (same<elem<V>, f32>::value) return odd_by_table(x, 8.99365902f, 3.5f, tanh_table);
#endif
  const V a = abs(x), z = x * x;
  V p;
  if constexpr (same<elem<V>, f32>::value) {
    p = horner(z, 2.139281828e-3f, -8.173499068e-3f, 2.169917841e-2f, -5.394649495e-2f, 1.333320398e-1f,
      -3.333333075e-1f);
  } else {
    p = horner(z, -2.263875373746601166e-6, 1.177533846943124127e-5, -3.660481220299514908e-5, 9.573813547737454008e-5,
      -2.387656224639015068e-4, 5.899478190338106528e-4, -1.455822032075908369e-3, 3.592126697906911279e-3,
      -8.863235431573827397e-3, 2.186948853150164994e-2, -5.396825396812378407e-2, 1.333333333333314957e-1,
      -3.333333333333333243e-1);
  }
  const V small = fma(p, z * a, a);
  V n;
  const V one = splat<V>(1);
  const V t = raw_min(splat<V>(sizeof(elem<V>) == 4 ? 28 : 56), a * splat<V>(2.885390081777926815));  // 2 log2(e)
  const V q = exp2_parts(t, n);
  const V large = one - splat<V>(2) / (scale2(one + q, n) + one);
  return copysign(where(a < splat<V>((elem<V>)0.625), small, large), x);
}
