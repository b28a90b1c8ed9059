"""Scalar functions that ISPC, CUDA and C lack, or define with other bits or special values.

They are written once, in the subset that the three languages share: a definition begins with
``$inline``, ``$d`` is the suffix of a float64 constant, ``$abs`` and ``$floor`` are the float32
functions; :meth:`.dialect.Dialect.fill` replaces these words by a language's own.  A prelude
defines what else they need: ``md_fma`` of both precisions, ``intbits`` and ``floatbits``.

They compute float32 without branches and tables, with the same bits on every device and ISA: all
rounding is that of single IEEE operations and explicit fused multiply-adds.  NaN, infinities,
signed zeros, denormal arguments and results are as in NumPy.  ``tests/cpu/test_math.py`` checks
the errors (:data:`BOUNDS`) over all float32 values.

Polynomials are minimax fits of the relative error of the function (of the absolute error where a
constant is added to them), whose coefficients were rounded one after another, with a new fit of
the others after each.  Constants are hexadecimal, so that the compiled value is the fitted one.

A clamp ``limit < x ? limit : x`` is one instruction and returns ``x`` if that is NaN; so most
functions need no case for NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

BOUNDS: Mapping[str, float] = MappingProxyType(
    {
        "exp": 1.02,
        "expm1": 1.45,
        "log": 0.76,
        "log1p": 1.34,
        "tanh": 1.34,
        "erf": 1.15,
        "pow": 0.95,
        "sin": 0.51,
        "cos": 0.51,
        "atan": 0.51,
    }
)
"""The largest error of ``md_<name>`` in units in the last place (ULP) of the exact result; below
the normal range the unit is the smallest denormal."""

FUNCTIONS = """\
// Added to a float below 2^22, this leaves the nearest integer in the low bits of the sum.
#define MD_ROUND 0x1.8p23f
// ln(2) = hi + lo; 12 bits of hi make n * hi exact.
#define MD_LN2_HI 0x1.62ep-1f
#define MD_LN2_LO 0x1.0bfbe8p-15f

// p * 2^k with one rounding; t is k + MD_ROUND. Two factors, since 2^k may be out of range.
$inline float md_scale(float p, float t) {
  int k = intbits(t) << 23;
  int half = (k >> 1) & 0xff800000;
  return p * floatbits(half + 0x3f800000) * floatbits(k - half + 0x3f800000);
}

// exp(x) = 2^n exp(r), |r| <= ln(2) / 2. The clamped ends give 0 and infinity by rounding.
$inline float md_exp(float x) {
  x = 89.0f < x ? 89.0f : x;
  x = -104.0f > x ? -104.0f : x;
  float t = md_fma(x, 0x1.715476p+0f, MD_ROUND);
  float n = t - MD_ROUND;
  float r = md_fma(n, -MD_LN2_LO, md_fma(n, -MD_LN2_HI, x));
  float p = 0x1.6a4f28p-10f;
  p = md_fma(p, r, 0x1.12398p-7f);
  p = md_fma(p, r, 0x1.5558aep-5f);
  p = md_fma(p, r, 0x1.555492p-3f);
  p = md_fma(p, r, 0x1.fffffcp-2f);
  return md_scale(md_fma(p, r * r, r) + 1.0f, t);
}

// y with the sign of x, where y is not negative or has it already; -0.0 for -0.0.
$inline float md_with_sign(float y, float x) {
  return floatbits(intbits(y) | (intbits(x) & 0x80000000));
}

// exp(x) - 1 = 2^n (exp(r) - 1) + (2^n - 1), from halves, since 2^n may be out of range.
$inline float md_expm1(float x) {
  float c = 89.0f < x ? 89.0f : x;
  c = -18.0f > c ? -18.0f : c;
  float t = md_fma(c, 0x1.715476p+0f, MD_ROUND);
  float n = t - MD_ROUND;
  float r = md_fma(n, -MD_LN2_LO, md_fma(n, -MD_LN2_HI, c));
  float p = 0x1.9e6ef4p-13f;
  p = md_fma(p, r, 0x1.6d3a3ap-10f);
  p = md_fma(p, r, 0x1.1112dap-7f);
  p = md_fma(p, r, 0x1.5554f8p-5f);
  p = md_fma(p, r, 0x1.555554p-3f);
  p = md_fma(p, r, 0.5f);
  p = md_fma(p, r * r, r);
  float s = floatbits((intbits(t) << 23) + 0x3f000000);
  float y = 2.0f * md_fma(p, s, s - 0.5f);
  return md_with_sign(n == 0.0f ? p : y, x);
}

// log(1 + m) - m + m^2 / 2, sqrt(1/2) <= 1 + m < sqrt(2).
$inline float md_log_tail(float m) {
  float p = 0x1.14763ap-4f;
  p = md_fma(p, m, -0x1.de02d6p-4f);
  p = md_fma(p, m, 0x1.e6bf38p-4f);
  p = md_fma(p, m, -0x1.fc2884p-4f);
  p = md_fma(p, m, 0x1.233ba8p-3f);
  p = md_fma(p, m, -0x1.555c46p-3f);
  p = md_fma(p, m, 0x1.99a476p-3f);
  p = md_fma(p, m, -0x1.000006p-2f);
  p = md_fma(p, m, 0x1.555548p-2f);
  return m * m * m * p;
}
// n log(2) + log(1 + m).
$inline float md_log_sum(float n, float m) {
  float y = md_fma(n, MD_LN2_LO, md_log_tail(m));
  return md_fma(n, MD_LN2_HI, m + md_fma(-0.5f * m, m, y));
}
// The exponent of u as md_log_tail wants it; u is positive and not denormal.
$inline int md_log_exponent(float u) { return (int)(intbits(u) - 0x3f3504f3) >> 23; }

$inline float md_log(float x) {
  bool tiny = x < 0x1p-126f;
  float u = tiny ? x * 0x1p23f : x;
  int e = md_log_exponent(u);
  float m = floatbits(intbits(u) - (e << 23)) - 1.0f;
  float y = md_log_sum((float)(tiny ? e - 23 : e), m);
  y = x < floatbits(0x7f800000) ? y : x;
  y = x == 0.0f ? floatbits(0xff800000) : y;
  return x < 0.0f ? floatbits(0x7fc00000) : y;
}
// The exponent e is that of the rounded 1 + x, but m = 2^-e x + (2^-e - 1) has one rounding.
$inline float md_log1p(float x) {
  int e = md_log_exponent(1.0f + x);
  float s = floatbits((129 - e) << 23);
  float y = md_log_sum((float)e, md_fma(0.25f * x, s, md_fma(0.25f, s, -1.0f)));
  y = $abs(x) < 0x1p-25f ? x : y;
  y = x < floatbits(0x7f800000) ? y : x;
  y = x == -1.0f ? floatbits(0xff800000) : y;
  return x < -1.0f ? floatbits(0x7fc00000) : y;
}

// x + x^3 P(x^2) near 0, elsewhere 1 - 2 / (exp(2 |x|) + 1).
$inline float md_tanh(float x) {
  float a = $abs(x), z = x * x;
  float p = -0x1.7537fcp-8f;
  p = md_fma(p, z, 0x1.5200cap-6f);
  p = md_fma(p, z, -0x1.b8368ep-5f);
  p = md_fma(p, z, 0x1.1106fap-3f);
  p = md_fma(p, z, -0x1.555532p-2f);
  float near = md_fma(p * z, x, x);
  float far = 1.0f - 2.0f / (md_exp(a + a) + 1.0f);
  return md_with_sign(a < 0.625f ? near : far, x);
}

// x + x P(x^2) near 0, elsewhere 1 - exp(|x| Q(|x|)).
$inline float md_erf(float x) {
  float z = x * x;
  float p = -0x1.41323cp-11f;
  p = md_fma(p, z, 0x1.48c424p-8f);
  p = md_fma(p, z, -0x1.b6c434p-6f);
  p = md_fma(p, z, 0x1.ce1d88p-4f);
  p = md_fma(p, z, -0x1.8126f2p-2f);
  p = md_fma(p, z, 0x1.06eba6p-3f);
  float near = md_fma(p, x, x);
  float a = $abs(x);
  a = 4.0f < a ? 4.0f : a;
  float q = 0x1.c39996p-13f;
  q = md_fma(q, a, -0x1.a6d84ep-9f);
  q = md_fma(q, a, 0x1.779bbp-6f);
  q = md_fma(q, a, -0x1.af606cp-4f);
  q = md_fma(q, a, -0x1.457778p-1f);
  q = md_fma(q, a, -0x1.20e71cp+0f);
  float far = 1.0f - md_exp(q * a);
  return md_with_sign(a < 0.875f ? near : far, x);
}

// The sine of a, which is not negative, and so many quarter turns. In quarter turns a is n + f;
// where it has 24 bits before the point, it is m 2^e, and of 2^e 2 / pi whole turns are left out:
// hi + lo for every sixteenth e. What is computed in float64 is rounded once.
$inline float md_wave(float a, int quarters) {
  double x = a;
  double n = md_fma(x, 0x1.45f306dc9c883p-1$d, 0x1.8p52$d) - 0x1.8p52$d;
  double r = md_fma(n, -0x1.921fb54442d18p+0$d, x);
  r = md_fma(n, -0x1.1a62633145c07p-54$d, r);
  int bits = (int)intbits(a);
  int e = (bits >> 23) - 150;
  int j = e >> 4;
  double hi = 0x1.45f306dc9c883p-1$d;
  hi = j > 0 ? 0x1.836e4e44152ap+0$d : hi;
  hi = j > 1 ? 0x1.27220a94fe13bp+1$d : hi;
  hi = j > 2 ? 0x1.529fc2757d1f5p-4$d : hi;
  hi = j > 3 ? 0x1.fc2757d1f534ep+0$d : hi;
  hi = j > 4 ? 0x1.abe8fa9a6ee07p+1$d : hi;
  hi = j > 5 ? 0x1.f534ddc0db629p+0$d : hi;
  double lo = -0x1.6b01ec5417056p-55$d;
  lo = j > 0 ? -0x1.ec54170565912p-55$d : lo;
  lo = j > 1 ? -0x1.05c1596447e49p-53$d : lo;
  lo = j > 2 ? 0x1.a6ee06db14acdp-59$d : lo;
  lo = j > 3 ? -0x1.1f924eb53361ep-55$d : lo;
  lo = j > 4 ? -0x1.275a99b0ef1bfp-54$d : lo;
  lo = j > 5 ? 0x1.664f10e4107f9p-54$d : lo;
  double k = (double)((bits & 0x7fffff) | 0x800000) * (double)(1 << (e & 15));
  double p = k * hi;
  double rest = md_fma(k, lo, md_fma(k, hi, -p));
  p = md_fma(md_fma(p, 0.25$d, 0x1.8p52$d) - 0x1.8p52$d, -4.0$d, p);
  double m = (p + rest + 0x1.8p52$d) - 0x1.8p52$d;
  bool large = a >= 0x1p24f;
  n = large ? m : n;
  r = large ? (p - m + rest) * 0x1.921fb54442d18p+0$d : r;
  double z = r * r;
  double s = -0x1.ae64567f544e4p-26$d;
  s = md_fma(s, z, 0x1.71de3a556c734p-19$d);
  s = md_fma(s, z, -0x1.a01a01a01a01ap-13$d);
  s = md_fma(s, z, 0x1.1111111111111p-7$d);
  s = md_fma(s, z, -0x1.5555555555555p-3$d);
  s = md_fma(s * z, r, r);
  double c = 0x1.1eed8eff8d898p-29$d;
  c = md_fma(c, z, -0x1.27e4fb7789f5cp-22$d);
  c = md_fma(c, z, 0x1.a01a01a01a01ap-16$d);
  c = md_fma(c, z, -0x1.6c16c16c16c17p-10$d);
  c = md_fma(c, z, 0x1.5555555555555p-5$d);
  c = md_fma(c, z, -0.5$d);
  c = md_fma(c, z, 1.0$d);
  int turned = (int)n + quarters;
  float y = (float)((turned & 1) != 0 ? c : s);
  y = (turned & 2) != 0 ? -y : y;
  return a < floatbits(0x7f800000) ? y : a - a;
}
$inline float md_sin(float x) {
  return floatbits(intbits(md_wave($abs(x), 0)) ^ (intbits(x) & 0x80000000));
}
$inline float md_cos(float x) { return md_wave($abs(x), 1); }

// A quarter or half of a right angle and the arc of what is left, at most tan(pi / 8).
$inline float md_atan(float x) {
  double a = $abs(x);
  bool far = a > 0x1.3504f333f9de6p+1$d, middle = a > 0x1.a827999fcef32p-2$d;
  double over = far ? -1.0$d : (middle ? a - 1.0$d : a);
  double under = far ? a : (middle ? a + 1.0$d : 1.0$d);
  double corner = far ? 0x1.921fb54442d18p+0$d : (middle ? 0x1.921fb54442d18p-1$d : 0.0$d);
  double v = over / under;
  double z = v * v;
  double p = 0x1.8618618618618p-5$d;
  p = md_fma(p, z, -0x1.af286bca1af28p-5$d);
  p = md_fma(p, z, 0x1.e1e1e1e1e1e1ep-5$d);
  p = md_fma(p, z, -0x1.1111111111111p-4$d);
  p = md_fma(p, z, 0x1.3b13b13b13b14p-4$d);
  p = md_fma(p, z, -0x1.745d1745d1746p-4$d);
  p = md_fma(p, z, 0x1.c71c71c71c71cp-4$d);
  p = md_fma(p, z, -0x1.2492492492492p-3$d);
  p = md_fma(p, z, 0x1.999999999999ap-3$d);
  p = md_fma(p, z, -0x1.5555555555555p-2$d);
  return md_with_sign((float)(corner + md_fma(p * z, v, v)), x);
}

// 2^(y log2(|x|)): the logarithm, the product and its split into n + r take float64.
$inline float md_pow(float x, float y) {
  float a = $abs(x);
  bool tiny = a < 0x1p-126f;
  float u = tiny ? a * 0x1p23f : a;
  int e = md_log_exponent(u);
  double m = floatbits(intbits(u) - (e << 23)) - 1.0f;
  float n = (float)(tiny ? e - 23 : e);
  n = a == 0.0f ? floatbits(0xff800000) : n;
  n = a < floatbits(0x7f800000) ? n : a;
  double l = 0x1.3ce7b15146043p-4$d;
  l = md_fma(l, m, -0x1.2488a610a9f23p-3$d);
  l = md_fma(l, m, 0x1.2871fc6adf7afp-3$d);
  l = md_fma(l, m, -0x1.252f4a9bbc01fp-3$d);
  l = md_fma(l, m, 0x1.452917cd414fp-3$d);
  l = md_fma(l, m, -0x1.71416f2e7891p-3$d);
  l = md_fma(l, m, 0x1.a63f44675096ap-3$d);
  l = md_fma(l, m, -0x1.ec72b5a819d9fp-3$d);
  l = md_fma(l, m, 0x1.277651fc48b8p-2$d);
  l = md_fma(l, m, -0x1.7154709778844p-2$d);
  l = md_fma(l, m, 0x1.ec709ebb93c75p-2$d);
  l = md_fma(l, m, -0x1.715476565d4d6p-1$d);
  l = md_fma(l, m, 0x1.71547652a1e9ap+0$d);
  // An infinite power of 1 is 1, like a finite one; other bases have overflowed by then.
  float b = 0x1p126f < y ? 0x1p126f : y;
  b = -0x1p126f > b ? -0x1p126f : b;
  double z = (double)b * md_fma(l, m, (double)n);
  z = 129.0$d < z ? 129.0$d : z;
  z = -151.0$d > z ? -151.0$d : z;
  float t = (float)z + MD_ROUND;
  float r = (float)(z - (double)(t - MD_ROUND));
  float p = 0x1.417872p-13f;
  p = md_fma(p, r, 0x1.5f0952p-10f);
  p = md_fma(p, r, 0x1.3b2dd4p-7f);
  p = md_fma(p, r, 0x1.c6af7ap-5f);
  p = md_fma(p, r, 0x1.ebfbdcp-3f);
  p = md_fma(p, r, 0x1.62e43p-1f);
  float w = md_scale(md_fma(p, r, 1.0f), t);
  float h = 0.5f * y;
  int odd = y == $floor(y) && h != $floor(h) ? 0x80000000 : 0;
  w = floatbits(intbits(w) | (intbits(x) & odd));
  w = x < 0.0f && a < floatbits(0x7f800000) && y != $floor(y) ? floatbits(0x7fc00000) : w;
  return x == 1.0f || y == 0.0f ? 1.0f : w;
}
"""

INTEGER_FUNCTIONS = """\
$inline int64 @_div(int64 a, int64 b) {
  const int64 d = (b == 0 || b == -1) ? 1 : b;
  const int64 q = a / d;
  return b == 0 ? 0 : (b == -1 ? -q : q);
}
$inline int64 @_pow(int64 a, int64 b) {
  int64 result = 1, square = a, left = b;
  while (left > 0) {
    if (left & 1) result *= square;
    square *= square;
    left >>= 1;
  }
  const int64 inverse = a == 1 ? 1 : (a == -1 ? ((b & 1) ? -1 : 1) : 0);
  return b < 0 ? inverse : result;
}
"""
"""Division and power of int64 expressions, where ``@`` stands for the kernel's name.  A division by
zero would end the process, on a CPU even in lanes that are masked off."""
