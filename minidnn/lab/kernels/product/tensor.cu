// Tensor cores.
//
// A warp multiplies 16 rows of 16 numbers by 16 rows of 8 in one instruction, in float16 with sums
// in float32. Tiles lie so that a register takes two neighbours along what is summed: rows of the
// first factor as they are, two rows of the second in turns. A warp makes 64 by 32 sums, as many a
// thread as before.
//
// Expect: Many times the rate of float32. Tiles must come to registers for each product, and wait
// for memory: cuBLAS has the tensor cores of Hopper read shared memory themselves, and is faster.
// The tests' emulator has a function of the same name.
#ifdef __CUDACC__
// Sixteen rows by eight columns of sums, of sixteen products each.
template <class>
MD_FUNCTION void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                          unsigned int b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y, RESIDENT)
    tensor(const md_half *a, const md_half *b, md_half *y, int rows, int columns, int depth) {
  constexpr int THREADS = BLOCK_X * BLOCK_Y, ROWS = BLOCK_Y * 8, COLUMNS = BLOCK_X * 8;
  constexpr int CHUNKS = TILE_DEPTH / 8, TURNS_A = (ROWS * CHUNKS + THREADS - 1) / THREADS;
  constexpr int PAIRS = TILE_DEPTH / 2, TURNS_B = (PAIRS * BLOCK_X + THREADS - 1) / THREADS;
  // Words of two numbers; words behind each row let a warp's fragments lie in all banks.
  alignas(16) __shared__ unsigned int tile_a[2][ROWS][PAIRS + 4], tile_b[2][PAIRS][COLUMNS + 8];
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int i = warp / (BLOCK_X / 4) * 64 + lane / 4, j = warp % (BLOCK_X / 4) * 32 + lane / 4;
  const int top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS;
  const uint4 zeros = {0, 0, 0, 0};
  uint4 next_a[TURNS_A], next_b[TURNS_B][2];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int turn = 0; turn < TURNS_A; turn++) {
      const int at = thread + turn * THREADS, row = top + at / CHUNKS, k = first + at % CHUNKS * 8;
      const bool inside = at < ROWS * CHUNKS && row < rows && k < depth;
      next_a[turn] = inside ? *(const uint4 *)(a + row * depth + k) : zeros;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_B; turn++) {
      const int at = thread + turn * THREADS, column = left + at % BLOCK_X * 8;
      const int k = first + at / BLOCK_X * 2;
      const bool inside = at < PAIRS * BLOCK_X && column < columns && k < depth;
#pragma unroll
      for (int own = 0; own < 2; own++)
        next_b[turn][own] = inside ? *(const uint4 *)(b + (k + own) * columns + column) : zeros;
    }
  };
  const auto keep = [&](int buffer) {
#pragma unroll
    for (int turn = 0; turn < TURNS_A; turn++) {
      const int at = thread + turn * THREADS;
      if (at >= ROWS * CHUNKS) break;
      *(uint4 *)(tile_a[buffer][at / CHUNKS] + at % CHUNKS * 4) = next_a[turn];
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_B; turn++) {
      const int at = thread + turn * THREADS;
      if (at >= PAIRS * BLOCK_X) break;
      const unsigned int *const low = (const unsigned int *)&next_b[turn][0];
      const unsigned int *const high = (const unsigned int *)&next_b[turn][1];
#pragma unroll
      for (int e = 0; e < 8; e += 4) {
        const unsigned int x = low[e / 2], y = low[e / 2 + 1], z = high[e / 2], w = high[e / 2 + 1];
        const uint4 four = {x & 0xffff | z << 16, x >> 16 | z & 0xffff0000, y & 0xffff | w << 16,
                            y >> 16 | w & 0xffff0000};
        *(uint4 *)(tile_b[buffer][at / BLOCK_X] + at % BLOCK_X * 8 + e) = four;
      }
    }
  };
  float sums[4][4][4] = {};
  fetch(0);
  keep(0);
  __syncthreads();
  for (int first = 0, buffer = 0; first < depth; first += TILE_DEPTH, buffer ^= 1) {
    const bool more = first + TILE_DEPTH < depth;
    if (more) fetch(first + TILE_DEPTH);
    // Of a warp: 64 rows by 32 columns, sixteen by eight at a time.
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k += 16) {
      unsigned int a[4][4], b[4][2];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int part = 0; part < 4; part++)
          a[r][part] = tile_a[buffer][i + r * 16 + part % 2 * 8][k / 2 + part / 2 * 4 + lane % 4];
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int part = 0; part < 2; part++)
          b[c][part] = tile_b[buffer][k / 2 + part * 4 + lane % 4][j + c * 8];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) multiply<md_half>(sums[r][c], a[r], b[c][0], b[c][1]);
    }
    if (more) keep(buffer ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 8; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int row = top + i + r * 8, column = left + j - lane / 4 + c * 8 + lane % 4 * 2;
      const float *const two = sums[r / 2][c] + r % 2 * 2;
      if (row < rows && column < columns)
        *(unsigned int *)(y + row * columns + column) = md_pair_of_halves(two[0], two[1]);
    }
}
