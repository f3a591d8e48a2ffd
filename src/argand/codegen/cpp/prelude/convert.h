//@ bf16_to_f32
// bfloat16 and half are kept as their 16 bits.
template <class V> INLINE rebind<V, f32> bf16_to_f32(V x) {
  return bits<rebind<V, f32>>(convert<rebind<V, u32>>(x) << 16);
}
//@ f32_to_bf16
// Round to nearest even; a NaN stays a (quiet) NaN.
template <class V> INLINE rebind<V, u16> f32_to_bf16(V x) {
  typedef rebind<V, u32> U;
  const U u = bits<U>(x);
  const U rounded = (u + splat<U>(0x7fff) + ((u >> 16) & splat<U>(1))) >> 16;
  return convert<rebind<V, u16>>(where(x != x, splat<U>(0x7fc0), rounded));
}
//@ f16_to_f32
template <class V> INLINE rebind<V, f32> f16_to_f32(V x) {
  typedef rebind<V, f32> F;
#if defined(__F16C__)
  if constexpr (traits<V>::lanes == 8) return (F)__builtin_ia32_vcvtph2ps256((vec<i16, 8>)x);
#if defined(__AVX512F__)
  else if constexpr (traits<V>::lanes == 16) return (F)__builtin_ia32_vcvtph2ps512_mask((vec<i16, 16>)x, vec<f32, 16>{}, (u16)-1, 4);
#endif
  else
#endif
  {
    typedef rebind<V, u32> U;
    const U u = convert<U>(x);
    const U sign = (u & splat<U>(0x8000)) << 16;
    const U rest = (u & splat<U>(0x7fff)) << 13;
    // Exponents move by 112; multiplying does so for subnormal numbers too. Infinities and NaNs get the largest exponent.
    const U finite = bits<U>(bits<F>(rest) * splat<F>(0x1p112f));
    return bits<F>(where(rest >= splat<U>(0x0f800000), rest | splat<U>(0x7f800000), finite) | sign);
  }
}
//@ f32_to_f16
template <class V> INLINE rebind<V, u16> f32_to_f16(V x) {
#if defined(__F16C__)
  if constexpr (traits<V>::lanes == 8) return (vec<u16, 8>)__builtin_ia32_vcvtps2ph256((vec<f32, 8>)x, 0);
#if defined(__AVX512F__)
  else if constexpr (traits<V>::lanes == 16) return (vec<u16, 16>)__builtin_ia32_vcvtps2ph512_mask((vec<f32, 16>)x, 0, vec<i16, 16>{}, (u16)-1);
#endif
  else
#endif
  {
    typedef rebind<V, u32> U;
    typedef rebind<V, f32> F;
    const U u = bits<U>(x), sign = (u >> 16) & splat<U>(0x8000), a = u & splat<U>(0x7fffffff);
    // Normal: round at bit 13 to even, rebias. Subnormal: adding 0.5 aligns the bits, and the addition rounds to even.
    const U normal = (a + splat<U>(0xc8000fff) + ((a >> 13) & splat<U>(1))) >> 13;
    const U tiny = bits<U>(bits<F>(a) + splat<F>(0.5f)) - splat<U>(0x3f000000);
    const U finite = where(a < splat<U>(0x38800000), tiny, normal);
    const U special = where(a > splat<U>(0x7f800000), splat<U>(0x7e00), splat<U>(0x7c00));
    return convert<rebind<V, u16>>(where(a >= splat<U>(0x477ff000), special, finite) | sign);
  }
}
//@ to_bool
template <class V> INLINE auto to_bool(V x) { return x != splat<V>(0); }
//@ from_bool
template <class V, class M> INLINE V from_bool(M m) {
  if constexpr (traits<V>::vector) return where(m, splat<V>(1), splat<V>(0)); else return (V)m;
}
//@ float_to_int
// Truncates; what does not fit becomes what the machine's conversion gives, cut to the type, as in eager.
template <class V, class F> INLINE V float_to_int(F x) {
  typedef elem<V> I;
  if constexpr (sizeof(I) == 8) return convert<V>(x);
  else if constexpr (sizeof(I) == 4 && (I)-1 < 0) return convert<V>(x);
  else if constexpr (sizeof(elem<F>) == 8 || sizeof(I) == 4) return convert<V>(convert<rebind<F, i64>>(x));
  else return convert<V>(convert<rebind<F, i32>>(x));
}
