// Sums of what a kernel of pixels and filters computes of its results, filter by filter: printed into
// kernels whose threads have chunks of the same filters in every tile, ACROSS of them, LANES threads
// side by side and ROWS of these rows in a warp.  In the end the threads of a block join theirs,
// always in the same order.
struct Totals {
  float of[$COUNT$][ACROSS][8] = {};
};

// Writes the block's part.  Threads meet in `all`, of 8 numbers each, which nobody uses any more.
MD_FUNCTION void leave(const Totals &totals, float *all, float *part, int n0, int filters) {
  enum { WARP = ROWS * LANES, THREADS = GROUPS * 4 * WARP };  // those that write
  enum { WIDE = LANES * 8, SIDE = SPLITS_N ? GROUPS : 1 };
  enum { EACH = THREADS / SIDE / LANES };  // threads with the same filters
  const int lane = threadIdx.x & 31, thread = (threadIdx.x >> 5) * WARP + lane;
  const int side = threadIdx.x / WIDE, c = threadIdx.x % WIDE;
  const long long stride = (long long)gridDim.x * filters;
  #pragma unroll
  for (int sum = 0; sum < $COUNT$; sum++)
    #pragma unroll
    for (int i = 0; i < ACROSS; i++) {
      meet(1, GROUPS * 128);
      #pragma unroll
      for (int k = 0; k < 8; k++)
        if (lane < WARP) all[k * THREADS + thread] = totals.of[sum][i][k];
      meet(1, GROUPS * 128);
      const int n = n0 + side * N + i * WIDE + c;
      if (side < SIDE && n < filters) {
        const float *const own = all + c % 8 * THREADS + side * (THREADS / SIDE) + c / 8;
        float total = 0.0f;
        for (int e = 0; e < EACH * LANES; e += LANES) total += own[e];
        part[sum * stride + (long long)blockIdx.x * filters + n] = total;
      }
    }
}
