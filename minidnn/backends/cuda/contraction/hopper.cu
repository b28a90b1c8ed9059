// Hopper's instructions for kernels whose warp groups load and multiply by themselves.  It stands
// in the namespace of each such kernel; the tests' emulator has functions of the same names.
#ifdef __CUDACC__
// Starts to copy 16 bytes to shared memory, zeros where `from` is not inside.
template <class T> MD_FUNCTION void copy(unsigned int to, const T *from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
// Reads 16 bytes here and not where they are used, anything where `from` is not inside.
MD_FUNCTION uint4 asked(const void *from, bool inside) {
  uint4 x;
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; "
               "mov.b32 %2, 0; mov.b32 %3, 0; @p ld.global.v4.b32 {%0, %1, %2, %3}, [%4]; }"
               : "=&r"(x.x), "=&r"(x.y), "=&r"(x.z), "=&r"(x.w) : "l"(from), "r"((int)inside));
  return x;
}
MD_FUNCTION void copies_end() { asm volatile("cp.async.wait_all;" : : : "memory"); }
// Arrives at a barrier when all copies are there that this thread has started.
MD_FUNCTION void arrive_with_copies(unsigned int barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(barrier) : "memory");
}
MD_FUNCTION void expect(unsigned int barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(barrier), "r"(arrivals) : "memory");
}
MD_FUNCTION void arrive(unsigned int barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(barrier) : "memory");
}
// Waits until a barrier was passed `round` + 1 times; it may be one time further at most.
MD_FUNCTION void wait(unsigned int barrier, int round) {
  int done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                 "selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier), "r"(round & 1) : "memory");
}
// A warp group's share of the registers, from here on; the groups of a block have them all.
template <int COUNT> MD_FUNCTION void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(COUNT));
}
template <int COUNT> MD_FUNCTION void keep_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(COUNT));
}
MD_FUNCTION void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
}
// What other instructions have written to shared memory, tensor cores read from now on.
MD_FUNCTION void written() { asm volatile("fence.proxy.async;" : : : "memory"); }
MD_FUNCTION void products_begin() { asm volatile("wgmma.fence.sync.aligned;" : : : "memory"); }
MD_FUNCTION void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}
template <int N> MD_FUNCTION void products_end(float (&c)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
  #pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(c[i]) : : "memory");
}
// Sixteen rows of sixteen elements as a warp's registers have them for a product.
MD_FUNCTION void fragments(unsigned int (&r)[4], unsigned int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Two neighbours of shared memory in one instruction: of a load, NVRTC makes two.
MD_FUNCTION float2 pair(unsigned int at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
  return x;
}
// 64 rows by N columns; a and b are matrices in shared memory, a also a warp's fragments.
template <class>
MD_FUNCTION void multiply(float (&c)[$N$ / 2], unsigned long long a, unsigned long long b,
                          int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %$ADD$, 0; "
               "wgmma.mma_async.sync.aligned.m64n$N$k16.f32.$PTX$.$PTX$ "
               "{$RESULTS$}, %$A$, %$B$, p, 1, 1, 0, 0; }"
               : $OPERANDS$
               : "l"(a), "l"(b), "r"(add));
}
template <class>
MD_FUNCTION void multiply(float (&c)[$N$ / 2], const unsigned int (&a)[4], unsigned long long b,
                          int add) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %$ADD4$, 0; "
               "wgmma.mma_async.sync.aligned.m64n$N$k16.f32.$PTX$.$PTX$ "
               "{$RESULTS$}, {%$A$, %$A1$, %$A2$, %$A3$}, %$B4$, p, 1, 1, 0; }"
               : $OPERANDS$
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}
// fma and ReLU of two numbers at once; NaN stays NaN.
template <class>
MD_FUNCTION unsigned int scaled(unsigned int x, unsigned int scale, unsigned int shift) {
  unsigned int y;
  asm("fma.rn.relu.$PTX$x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(scale), "r"(shift));
  return y;
}
#endif
// A matrix of core matrices: 8 rows lie at once, 8 rows on is 128 bytes, 8 columns on is `next`.
MD_FUNCTION unsigned long long matrix(unsigned int at, unsigned int next) {
  return (unsigned long long)(at >> 4) | (unsigned long long)(next >> 4) << 16
         | 8ull << 32;
}
// A matrix of rows of 16 * CHUNKS bytes, whose chunks of 16 bytes are swizzled as `swizzled` says.
template <int CHUNKS> MD_FUNCTION unsigned long long rows(unsigned int at) {
  return (unsigned long long)(at >> 4) | 1ull << 16
         | (unsigned long long)(8 * CHUNKS) << 32
         | (unsigned long long)(CHUNKS == 8 ? 1 : CHUNKS == 4 ? 2 : 3) << 62;
}
// Where the chunk of 16 bytes at this address lies: eight rows of a column never share a bank.
template <int CHUNKS> MD_FUNCTION unsigned int swizzled(unsigned int at) {
  return at ^ (at >> 7 & (CHUNKS - 1)) << 4;
}
