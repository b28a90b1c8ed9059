"""The prelude of every CUDA translation unit, and the rules that printers of kernels keep.

**Rounding.**  Units are compiled with ``-fmad=false`` and without fast math: ``a * b + c`` rounds
twice, and a fused multiply-add is written ``md_fma(a, b, c)``.  Division and square root are
correctly rounded, denormal numbers are kept.

**NaN.**  ``md_max`` and ``md_min`` are one instruction each (``max.NaN.f32``, from sm_80 on), which
returns NaN if either operand is NaN and orders +0 above -0: so a maximum does not depend on the
order of its operands.  The NaN that they return has the sign bit clear.  ``md_max_positive``
compares as integers: the sign bit of at least one operand must be clear.

**Asynchronous copies.**  ``md_copy<Bytes>(to, from)`` starts to copy 4, 8 or 16 bytes from global
to shared memory; ``md_copy_if<Bytes>(to, from, some)`` writes zeros instead if ``some`` is false.
``md_copy_wait()`` waits for all copies of this thread.  ``md_copy_commit()`` makes a group of the
copies since the last one, ``md_copy_wait_but<N>()`` waits for all groups but the last N.

**Warps.**  ``md_sync_warp()`` does what ``__syncwarp()`` promises.  The compiler omits the latter
where it believes that a warp has converged, and likewise ``__syncthreads()`` in blocks of one warp.
But a warp may still be diverged after a division whose slow path (operands that are infinite, NaN
or far from 1) some threads took: with NVRTC 13.0 on an H200, threads read what others had not yet
written.  A mask that the compiler does not know keeps it from omitting the barrier.

**Thread block clusters**, from sm_90 on.  A kernel with ``__cluster_dims__(P, 1, 1)`` runs P
neighbouring blocks along x at once; blocks consist of whole warps.  ``md_cluster_meet()`` is a
barrier for all their threads.  ``md_load_of(x, p, block)`` reads a multiple of 4 floats from the
shared memory of one of the blocks (0 to P - 1), at the offset that ``p`` has in this block, aligned
to 16 bytes.  That block must neither have ended nor have overwritten them: ``md_cluster_done()``
says that this thread reads no more, and ``md_cluster_leave()`` waits until all threads have said
so.  ``md_cluster_meet()`` and ``md_cluster_done()`` also wait for the thread's global stores, so
results are best stored between done and leave.

**Element types.**  Memory holds ``float``, ``md_half``, ``md_bf16``, ``md_u8`` and ``md_s8``,
registers hold float.  ``md_value`` converts an element to float, ``md_as<T>`` rounds a float to an
element, ``md_round<T>`` does both in turn.  Conversions to 8-bit integers truncate and saturate,
and give the smallest value for NaN.
``md_max_pairs<T>`` is ``md_max`` of two packed pairs of float16 or bfloat16, each in a 32-bit
register; ``md_load_pairs`` loads such pairs, and ``md_of_pairs<T>(x, v)`` is element v as float.
``md_load(x, p)`` and ``md_store(p, x)`` move N neighbouring elements with one access of
``sizeof(T) * N`` bytes, to which ``p`` is aligned; ``md_load_floats(x, p)`` loads any multiple of 4
floats.  ``md_load_row(x, p)`` and ``md_store_row(p, x)`` move N elements of 16 bits in shared
memory, at any offset, in words of two; loads also read up to 2 bytes before and 4 bytes after.
``md_write(p, x)`` is an ``md_store`` to global memory that is sure to be one instruction: NVRTC
splits a 16-byte store in inlined functions into four.  It converts to 16 bits two at a time.

**Functions** beyond CUDA's own are those of :mod:`..codegen.functions`: ``expf`` and the like
differ from release to release, and some of them lose NaN or flush denormal numbers.  No header is
included: parsing ``cuda_fp16.h`` takes longer than compiling most kernels.  The ``md_narrow_...``
functions are for results that are rounded to float16 or bfloat16, see :mod:`.expressions`.

The tests' emulator compiles the same texts with the system's C++ compiler, and has its own
definitions in place of those between ``#ifdef __CUDACC__`` and its ``#endif``.
"""

from __future__ import annotations

from ..codegen.dialect import CUDA
from ..codegen.functions import FUNCTIONS

_INTRINSICS = """\
#ifdef __CUDACC__
#define MD_FUNCTION static __device__ __forceinline__
#define MD_METHOD __device__
#define MD_SHARED extern __shared__ __align__(16) unsigned char md_shared[]
MD_FUNCTION unsigned int intbits(float x) { return __float_as_uint(x); }
MD_FUNCTION float floatbits(unsigned int x) { return __uint_as_float(x); }
MD_FUNCTION float md_fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
MD_FUNCTION double md_fma(double a, double b, double c) { return __fma_rn(a, b, c); }
MD_FUNCTION float md_max(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
MD_FUNCTION float md_min(float a, float b) {
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// The least of NaN: both functions give the operand that is a number.
MD_FUNCTION float md_clamp(float x, float least, float most) {
  return fminf(fmaxf(x, least), most);
}
// Four bytes of a word.  Conversions to int and to bytes saturate.  As an int NaN is 0 or the
// least; as int8 it has to become the least.
#define MD_FOUR(TYPE) \\
  unsigned int y; \\
  asm("{\\n .reg .b32 high;\\n" \\
      " cvt.pack.sat." TYPE ".s32.b32 high, %4, %3, 0;\\n" \\
      " cvt.pack.sat." TYPE ".s32.b32 %0, %2, %1, high;\\n}" \\
      : "=r"(y) : "r"((int)a), "r"((int)b), "r"((int)c), "r"((int)d)); \\
  return y;
MD_FUNCTION unsigned int md_four_unsigned(float a, float b, float c, float d) { MD_FOUR("u8") }
MD_FUNCTION unsigned int md_four_signed(float a, float b, float c, float d) {
  a = fmaxf(a, -128.0f), b = fmaxf(b, -128.0f), c = fmaxf(c, -128.0f), d = fmaxf(d, -128.0f);
  MD_FOUR("s8")
}
#undef MD_FOUR
MD_FUNCTION float md_max_positive(float a, float b) {
  return __int_as_float(max(__float_as_int(a), __float_as_int(b)));
}
MD_FUNCTION unsigned int md_max_halves(unsigned int a, unsigned int b) {
  unsigned int c;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
MD_FUNCTION unsigned int md_max_bf16s(unsigned int a, unsigned int b) {
  unsigned int c;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
template <int Bytes> MD_FUNCTION void md_copy(void *to, const void *from) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
               : : "r"(address), "l"(from), "n"(Bytes) : "memory");
}
template <int Bytes> MD_FUNCTION void md_copy_if(void *to, const void *from, bool some) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
               : : "r"(address), "l"(from), "n"(Bytes), "r"(some ? Bytes : 0) : "memory");
}
MD_FUNCTION void md_write_word(void *p, uint2 x) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(p), "r"(x.x), "r"(x.y) : "memory");
}
MD_FUNCTION void md_write_word(void *p, uint4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               : : "l"(p), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
MD_FUNCTION void md_copy_wait() { asm volatile("cp.async.wait_all;" : : : "memory"); }
MD_FUNCTION void md_copy_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int Groups> MD_FUNCTION void md_copy_wait_but() {
  asm volatile("cp.async.wait_group %0;" : : "n"(Groups) : "memory");
}
MD_FUNCTION void md_sync_warp() {
  unsigned int before, behind;
  asm("mov.u32 %0, %%lanemask_le;" : "=r"(before));
  asm("mov.u32 %0, %%lanemask_ge;" : "=r"(behind));
  asm volatile("bar.warp.sync %0;" : : "r"(before | behind) : "memory");
}
#if __CUDA_ARCH__ >= 900
// A warp arrives as one: see md_sync_warp().
MD_FUNCTION void md_cluster_meet() {
  md_sync_warp();
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" : : : "memory");
}
// Relaxed it would not wait for reads that are on their way.
MD_FUNCTION void md_cluster_done() {
  md_sync_warp();
  asm volatile("barrier.cluster.arrive.release.aligned;" : : : "memory");
}
MD_FUNCTION void md_cluster_leave() {
  md_sync_warp();
  asm volatile("barrier.cluster.wait.aligned;" : : : "memory");
}
template <int N> MD_FUNCTION void md_load_of(float (&x)[N], const float *p, int block) {
  static_assert(N % 4 == 0, "whole vectors");
  const unsigned int own = (unsigned int)__cvta_generic_to_shared(p);
  unsigned int address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(own), "r"(block));
  #pragma unroll
  for (int i = 0; i < N; i += 4)
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[i]), "=f"(x[i + 1]), "=f"(x[i + 2]), "=f"(x[i + 3])
                 : "r"(address + 4 * i) : "memory");
}
#endif
// 2^x and 1 / x, which err by two units in the last place; subnormal numbers are taken for 0.
MD_FUNCTION float md_flushed_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MD_FUNCTION float md_flushed_inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The same, and a / b, with subnormal numbers.
MD_FUNCTION float md_narrow_exp2(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
MD_FUNCTION float md_narrow_div(float a, float b) {
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
MD_FUNCTION float md_from_half(unsigned short x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
MD_FUNCTION unsigned short md_to_half(float x) {
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
MD_FUNCTION unsigned short md_to_bf16(float x) {
  unsigned short y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}
MD_FUNCTION unsigned int md_pair_of_halves(float low, float high) {
  unsigned int y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
MD_FUNCTION unsigned int md_pair_of_bf16s(float low, float high) {
  unsigned int y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
#endif
"""

_TYPES = """\
// x / d, exact, where r is 1 / d rounded: for whole d from 3 to 64, for which it was compared with
// the quotient for every mantissa.
MD_FUNCTION float md_quotient(float x, float d, float r) {
  const float q = x * r;
  const float y = md_fma(md_fma(-q, d, x), r, q);
  const float a = fabsf(x);
  return a < 0x1p+120f && (a > 0x1p-100f || a == 0.0f) ? y : x / d;
}
// The same without a branch, where the quotient of a tiny number is no tie between two others: for
// odd d, for which it was compared with the quotient for every number so small.
MD_FUNCTION float md_odd_quotient(float x, float d, float r) {
  const float q = x * r;
  const float y = md_fma(md_fma(-q, d, x), r, q);
  return y == y ? y : q;
}
// x / d where that is then rounded to two bytes: high + low is 1 / d, and both are positive, so
// that infinity stays itself.  It is the exact quotient of all but tiny numbers: what low brings is
// off by 2^-24 of itself, and no quotient lies so near to the middle between two floats.
// Of tiny ones it is off by less than 2^-148, which is far less than sums of float16 or bfloat16
// lie from where their quotients would be rounded otherwise.
MD_FUNCTION float md_narrow_quotient(float x, float high, float low) {
  return md_fma(x, high, md_fma(x, low, 0.0f));
}
struct md_half { unsigned short bits; };
struct md_bf16 { unsigned short bits; };
struct md_u8 { unsigned char bits; };
struct md_s8 { signed char bits; };
MD_FUNCTION float md_within(md_u8, float x) { return md_clamp(x, 0.0f, 255.0f); }
MD_FUNCTION float md_within(md_s8, float x) { return md_clamp(x, -128.0f, 127.0f); }
MD_FUNCTION float md_value(float x) { return x; }
MD_FUNCTION float md_value(md_half x) { return md_from_half(x.bits); }
MD_FUNCTION float md_value(md_bf16 x) { return floatbits((unsigned int)x.bits << 16); }
MD_FUNCTION unsigned int md_four(md_u8, float a, float b, float c, float d) {
  return md_four_unsigned(a, b, c, d);
}
MD_FUNCTION unsigned int md_four(md_s8, float a, float b, float c, float d) {
  return md_four_signed(a, b, c, d);
}
MD_FUNCTION float md_value(md_u8 x) { return (float)x.bits; }
MD_FUNCTION float md_value(md_s8 x) { return (float)x.bits; }
MD_FUNCTION void md_set(float &y, float x) { y = x; }
MD_FUNCTION void md_set(md_half &y, float x) { y.bits = md_to_half(x); }
MD_FUNCTION void md_set(md_bf16 &y, float x) { y.bits = md_to_bf16(x); }
MD_FUNCTION void md_set(md_u8 &y, float x) { y.bits = (unsigned char)(int)md_within(y, x); }
MD_FUNCTION void md_set(md_s8 &y, float x) { y.bits = (signed char)(int)md_within(y, x); }
template <class T> MD_FUNCTION T md_as(float x) {
  T y;
  md_set(y, x);
  return y;
}
MD_FUNCTION float md_rounded(float, float x) { return x; }
MD_FUNCTION float md_rounded(md_half, float x) { return md_from_half(md_to_half(x)); }
// As one of a pair: on its own, the conversion has a quarter of the rate.
MD_FUNCTION float md_rounded(md_bf16, float x) { return floatbits(md_pair_of_bf16s(0.0f, x)); }
MD_FUNCTION float md_rounded(md_u8 y, float x) { return (float)(int)md_within(y, x); }
MD_FUNCTION float md_rounded(md_s8 y, float x) { return (float)(int)md_within(y, x); }
template <class T> MD_FUNCTION float md_round(float x) { return md_rounded(T(), x); }
template <int Bytes> struct md_word;
template <> struct md_word<1> { typedef unsigned char type; };
template <> struct md_word<2> { typedef unsigned short type; };
template <> struct md_word<4> { typedef unsigned int type; };
template <> struct md_word<8> { typedef uint2 type; };
template <> struct md_word<16> { typedef uint4 type; };
struct md_two_words { uint4 low, high; };
template <> struct md_word<32> { typedef md_two_words type; };
template <int N, class T> union md_pack {
  typename md_word<N * sizeof(T)>::type word;
  T items[N];
  MD_METHOD md_pack() {}
};
template <int N> union md_pairs {
  typename md_word<4 * N>::type word;
  unsigned int items[N];
  MD_METHOD md_pairs() {}
};
template <int N, class T> MD_FUNCTION void md_unpack(float (&x)[N], const md_pack<N, T> &pack) {
  #pragma unroll
  for (int i = 0; i < N; i++) x[i] = md_value(pack.items[i]);
}
// One instruction for each: taken out of words as 16 bits they would take two.
template <int N> MD_FUNCTION void md_unpack(float (&x)[N], const md_pack<N, md_bf16> &pack) {
  if constexpr (N % 2 == 0) {
    md_pairs<N / 2> pairs;
    pairs.word = pack.word;
    #pragma unroll
    for (int i = 0; i < N; i += 2) {
      x[i] = floatbits(pairs.items[i / 2] << 16);
      x[i + 1] = floatbits(pairs.items[i / 2] & 0xffff0000u);
    }
  } else {
    #pragma unroll
    for (int i = 0; i < N; i++) x[i] = md_value(pack.items[i]);
  }
}
template <int N, class T> MD_FUNCTION void md_load(float (&x)[N], const T *p) {
  md_pack<N, T> pack;
  pack.word = *(const typename md_word<N * sizeof(T)>::type *)p;
  md_unpack(x, pack);
}
MD_FUNCTION unsigned int md_max_as(md_half, unsigned int a, unsigned int b) {
  return md_max_halves(a, b);
}
MD_FUNCTION unsigned int md_max_as(md_bf16, unsigned int a, unsigned int b) {
  return md_max_bf16s(a, b);
}
template <class T> MD_FUNCTION unsigned int md_max_pairs(unsigned int a, unsigned int b) {
  return md_max_as(T(), a, b);
}
template <class T, int N> MD_FUNCTION float md_of_pairs(const unsigned int (&x)[N], int v) {
  T y;
  y.bits = (unsigned short)(x[v >> 1] >> (v & 1) * 16);
  return md_value(y);
}
template <int N, class T> MD_FUNCTION void md_load_pairs(unsigned int (&x)[N], const T *p) {
  md_pairs<N> pairs;
  pairs.word = *(const typename md_word<4 * N>::type *)p;
  #pragma unroll
  for (int i = 0; i < N; i++) x[i] = pairs.items[i];
}
// The words of two pairs behind each other, ``bits`` of the first left out.
MD_FUNCTION unsigned int md_funnel(unsigned int low, unsigned int high, unsigned int bits) {
  return (unsigned int)((((unsigned long long)high << 32) | low) >> bits);
}
template <int N, class T> MD_FUNCTION void md_load_row(float (&x)[N], const T *p) {
  const unsigned int skipped = (unsigned int)(unsigned long long)p & 2u;
  const unsigned int *from = (const unsigned int *)((const unsigned char *)p - skipped);
  unsigned int words[N / 2 + 2], pairs[(N + 1) / 2];
  #pragma unroll
  for (int i = 0; i <= N / 2; i++) words[i] = from[i];
  words[N / 2 + 1] = 0u;
  #pragma unroll
  for (int i = 0; i < (N + 1) / 2; i++) pairs[i] = md_funnel(words[i], words[i + 1], skipped * 8u);
  #pragma unroll
  for (int i = 0; i < N; i++) x[i] = md_of_pairs<T>(pairs, i);
}
template <int N> MD_FUNCTION void md_load_floats(float (&x)[N], const float *p) {
  #pragma unroll
  for (int i = 0; i < N; i += 4) {
    md_pack<4, float> pack;
    pack.word = *(const uint4 *)(p + i);
    #pragma unroll
    for (int j = 0; j < 4; j++) x[i + j] = pack.items[j];
  }
}
template <int N, class T> MD_FUNCTION void md_store(T *p, const float (&x)[N]) {
  md_pack<N, T> pack;
  #pragma unroll
  for (int i = 0; i < N; i++) pack.items[i] = md_as<T>(x[i]);
  *(typename md_word<N * sizeof(T)>::type *)p = pack.word;
}
MD_FUNCTION unsigned int md_as_pair(md_half, float a, float b) { return md_pair_of_halves(a, b); }
MD_FUNCTION unsigned int md_as_pair(md_bf16, float a, float b) { return md_pair_of_bf16s(a, b); }
MD_FUNCTION void md_write_word(void *p, unsigned char x) { *(unsigned char *)p = x; }
MD_FUNCTION void md_write_word(void *p, unsigned short x) { *(unsigned short *)p = x; }
MD_FUNCTION void md_write_word(void *p, unsigned int x) { *(unsigned int *)p = x; }
template <int N, class T> MD_FUNCTION void md_write(T *p, const float (&x)[N]) {
  md_pairs<N / 2> pairs;
  #pragma unroll
  for (int i = 0; i < N; i += 2) pairs.items[i / 2] = md_as_pair(T(), x[i], x[i + 1]);
  md_write_word(p, pairs.word);
}
template <int N, class T> MD_FUNCTION void md_store_row(T *p, const float (&x)[N]) {
  const unsigned int skipped = (unsigned int)(unsigned long long)p & 2u;
  unsigned int pairs[N / 2 + 1];
  #pragma unroll
  for (int i = 0; i <= N / 2; i++)
    pairs[i] = md_as_pair(T(), 2 * i < N ? x[2 * i] : 0.0f, 2 * i + 1 < N ? x[2 * i + 1] : 0.0f);
  unsigned short *to = (unsigned short *)p;
  unsigned int *words = (unsigned int *)((unsigned char *)p + skipped);
  #pragma unroll
  for (int i = 0; i < (N - 1) / 2; i++)
    words[i] = md_funnel(pairs[i], pairs[i + 1], skipped * 8u);
  if (N % 2)  // the number before the words, or the one behind them
    to[skipped ? 0 : N - 1] = (unsigned short)(skipped ? pairs[0] : pairs[N / 2]);
  else if (skipped) {
    to[0] = (unsigned short)pairs[0];
    to[N - 1] = (unsigned short)(pairs[N / 2 - 1] >> 16);
  } else {
    words[N / 2 - 1] = pairs[N / 2 - 1];
  }
}
// Four at a time, which takes half of the instructions that one after the other take.
template <int N, class T>
MD_FUNCTION typename md_word<N>::type md_bytes_of(const float (&x)[N]) {
  if constexpr (N % 4 == 0) {
    md_pairs<N / 4> fours;
    #pragma unroll
    for (int i = 0; i < N; i += 4)
      fours.items[i / 4] = md_four(T(), x[i], x[i + 1], x[i + 2], x[i + 3]);
    return fours.word;
  } else {
    md_pack<N, T> pack;
    #pragma unroll
    for (int i = 0; i < N; i++) pack.items[i] = md_as<T>(x[i]);
    return pack.word;
  }
}
template <int N> MD_FUNCTION void md_store(md_u8 *p, const float (&x)[N]) {
  *(typename md_word<N>::type *)p = md_bytes_of<N, md_u8>(x);
}
template <int N> MD_FUNCTION void md_store(md_s8 *p, const float (&x)[N]) {
  *(typename md_word<N>::type *)p = md_bytes_of<N, md_s8>(x);
}
template <int N> MD_FUNCTION void md_write(md_u8 *p, const float (&x)[N]) {
  md_write_word(p, md_bytes_of<N, md_u8>(x));
}
template <int N> MD_FUNCTION void md_write(md_s8 *p, const float (&x)[N]) {
  md_write_word(p, md_bytes_of<N, md_s8>(x));
}
template <int N> MD_FUNCTION void md_write(float *p, const float (&x)[N]) {
  md_pairs<N> words;
  #pragma unroll
  for (int i = 0; i < N; i++) words.items[i] = intbits(x[i]);
  md_write_word(p, words.word);
}
"""

_NARROW = """\
// Functions of which results are rounded to two bytes.  They err by less than 2^-20 of themselves,
// exp, by the rounding of its exponent, by 2^-17 where it is near to the largest number.
MD_FUNCTION float md_flushed_exp(float x) { return md_flushed_exp2(x * 0x1.715476p+0f); }
MD_FUNCTION float md_narrow_exp(float x) { return md_narrow_exp2(x * 0x1.715476p+0f); }
// As md_tanh.
MD_FUNCTION float md_narrow_tanh(float x) {
  const float a = fabsf(x), z = x * x;
  float p = -0x1.7537fcp-8f;
  p = md_fma(p, z, 0x1.5200cap-6f);
  p = md_fma(p, z, -0x1.b8368ep-5f);
  p = md_fma(p, z, 0x1.1106fap-3f);
  p = md_fma(p, z, -0x1.555532p-2f);
  const float near = md_fma(p * z, x, x);
  const float far = md_fma(-2.0f, md_flushed_inverse(md_flushed_exp(a + a) + 1.0f), 1.0f);
  return md_with_sign(a < 0.625f ? near : far, x);
}
// As md_erf.
MD_FUNCTION float md_narrow_erf(float x) {
  const float z = x * x;
  float p = -0x1.41323cp-11f;
  p = md_fma(p, z, 0x1.48c424p-8f);
  p = md_fma(p, z, -0x1.b6c434p-6f);
  p = md_fma(p, z, 0x1.ce1d88p-4f);
  p = md_fma(p, z, -0x1.8126f2p-2f);
  p = md_fma(p, z, 0x1.06eba6p-3f);
  const float near = md_fma(p, x, x);
  float a = fabsf(x);
  a = 4.0f < a ? 4.0f : a;
  float q = 0x1.c39996p-13f;
  q = md_fma(q, a, -0x1.a6d84ep-9f);
  q = md_fma(q, a, 0x1.779bbp-6f);
  q = md_fma(q, a, -0x1.af606cp-4f);
  q = md_fma(q, a, -0x1.457778p-1f);
  q = md_fma(q, a, -0x1.20e71cp+0f);
  const float far = 1.0f - md_flushed_exp(q * a);
  return md_with_sign(a < 0.875f ? near : far, x);
}
"""

TYPES = {"float32": "float", "float16": "md_half", "bfloat16": "md_bf16"}
TYPES |= {"uint8": "md_u8", "int8": "md_s8"}
"""The C++ type of an element of each dtype."""


def prelude() -> str:
    """The text that every translation unit begins with."""
    return _INTRINSICS + _TYPES + CUDA.fill(FUNCTIONS) + _NARROW
