// Functions of vectors of floats, V, whose bits are integers, I: the types are the including file's.
INLINE V select(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }
INLINE V magnitude(V x) { return (V)((I)x & 0x7fffffff); }
INLINE V with_sign(V x, V of) { return (V)(((I)x & 0x7fffffff) | ((I)of & (int)0x80000000)); }

INLINE V exp(V x) {  // of numbers beyond +-87 that of +-87; of a NaN a NaN
  V t = select(x > 87.0f, V{} + 87.0f, select(x < -87.0f, V{} - 87.0f, x));
  V shift = V{} + 12582912.0f, n = (t * 1.44269504f + shift) - shift;
  V r = (t - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  I power = (__builtin_convertvector(n, I) + 127) << 23;
  return select(x == x, p * (V)power, x);
}

INLINE V tanh(V x) {
  V a = magnitude(x), z = x * x;
  V p = V{} - 5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  return select(a < 0.625f, p * z * x + x, with_sign(1.0f - 2.0f / (exp(a + a) + 1.0f), x));
}
