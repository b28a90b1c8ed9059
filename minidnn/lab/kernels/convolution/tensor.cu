// Tensor cores.
//
// A warp multiplies 16 rows of 16 numbers by 16 rows of 8 in one instruction, in float16 with sums
// in float32. Tiles lie so that a register takes two neighbours along what is summed: rows of
// filters as they are, and images in pairs of products. A warp makes 64 by 32 sums, as many a
// thread as before.
//
// Expect: Products cost a sixteenth of what they did. What is left is to gather the images, number
// by number, and to bring it all to registers: so tensor cores are idle for most of the time. The
// tests' emulator has a function of the same name.
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
    tensor(const md_half *x, const md_half *w, md_half *y) {
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH, DEPTH = CHANNELS * WINDOW;
  constexpr int LOWER = HEIGHT + 2 * PADDING - (WINDOW_HEIGHT - 1) * DILATION - 1;
  constexpr int RIGHT = WIDTH + 2 * PADDING - (WINDOW_WIDTH - 1) * DILATION - 1;
  constexpr int OUT_HEIGHT = LOWER / STRIDE + 1, OUT_WIDTH = RIGHT / STRIDE + 1;
  constexpr int PLANE = OUT_HEIGHT * OUT_WIDTH, POSITIONS = BATCH * PLANE;
  constexpr int THREADS = BLOCK_X * BLOCK_Y, ROWS = BLOCK_Y * 8, COLUMNS = BLOCK_X * 8;
  constexpr int CHUNKS = TILE_DEPTH / 8, TURNS_W = (ROWS * CHUNKS + THREADS - 1) / THREADS;
  constexpr int TURNS_X = TILE_DEPTH / 2 / (BLOCK_Y / 8);  // pairs of a thread
  // Words of two numbers; four words behind each row let a warp's fragments lie in all banks.
  alignas(16) __shared__ unsigned int tile_w[2][ROWS][TILE_DEPTH / 2 + 4];
  alignas(16) __shared__ unsigned int tile_x[2][TILE_DEPTH / 2][COLUMNS + 8];
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int i = warp / (BLOCK_X / 4) * 64 + lane / 4, j = warp % (BLOCK_X / 4) * 32 + lane / 4;
  const int top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS;
  const int deep = thread / COLUMNS * TURNS_X, position = left + thread % COLUMNS;
  // Where the window of the thread's position begins: of positions that are not, below the image.
  const int in_plane = position % PLANE;
  const int row = position < POSITIONS ? in_plane / OUT_WIDTH * STRIDE - PADDING : HEIGHT;
  const int column = in_plane % OUT_WIDTH * STRIDE - PADDING;
  const auto mine = x + position / PLANE * (CHANNELS * HEIGHT * WIDTH) + row * WIDTH + column;
  const uint4 zeros = {0, 0, 0, 0};
  uint4 next_w[TURNS_W];
  unsigned int next_x[TURNS_X];
  const auto gathered = [&](int k) -> unsigned int {
    const int channel = k / WINDOW, tap = k % WINDOW;
    const int r = tap / WINDOW_WIDTH * DILATION, c = tap % WINDOW_WIDTH * DILATION;
    const bool inside = k < DEPTH && row + r >= 0 && row + r < HEIGHT && column + c >= 0 &&
                        column + c < WIDTH;
    return inside ? mine[channel * (HEIGHT * WIDTH) + r * WIDTH + c].bits : 0;
  };
  const auto weight = [&](int filter, int k) -> unsigned int {
    return filter < FILTERS && k < DEPTH ? w[filter * DEPTH + k].bits : 0;
  };
  const auto fetch = [&](int first) {
#pragma unroll
    for (int turn = 0; turn < TURNS_W; turn++) {
      const int at = thread + turn * THREADS, k = first + at % CHUNKS * 8;
      const int filter = at < ROWS * CHUNKS ? top + at / CHUNKS : FILTERS;
      if (DEPTH % 8 == 0) {  // whole vectors
        const bool inside = filter < FILTERS && k < DEPTH;
        next_w[turn] = inside ? *(const uint4 *)(w + filter * DEPTH + k) : zeros;
        continue;
      }
      unsigned int words[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        words[e] = weight(filter, k + 2 * e) | weight(filter, k + 2 * e + 1) << 16;
      next_w[turn] = {words[0], words[1], words[2], words[3]};
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_X; turn++) {
      const int k = first + (deep + turn) * 2;
      next_x[turn] = gathered(k) | gathered(k + 1) << 16;
    }
  };
  const auto keep = [&](int buffer) {
#pragma unroll
    for (int turn = 0; turn < TURNS_W; turn++) {
      const int at = thread + turn * THREADS;
      if (at >= ROWS * CHUNKS) break;
      *(uint4 *)(tile_w[buffer][at / CHUNKS] + at % CHUNKS * 4) = next_w[turn];
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_X; turn++)
      tile_x[buffer][deep + turn][thread % COLUMNS] = next_x[turn];
  };
  float sums[4][4][4] = {};
  fetch(0);
  keep(0);
  __syncthreads();
  for (int first = 0, buffer = 0; first < DEPTH; first += TILE_DEPTH, buffer ^= 1) {
    const bool more = first + TILE_DEPTH < DEPTH;
    if (more) fetch(first + TILE_DEPTH);
    // Of a warp: 64 rows by 32 columns, sixteen by eight at a time.
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k += 16) {
      unsigned int a[4][4], b[4][2];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int part = 0; part < 4; part++)
          a[r][part] = tile_w[buffer][i + r * 16 + part % 2 * 8][k / 2 + part / 2 * 4 + lane % 4];
#pragma unroll
      for (int c = 0; c < 4; c++)
#pragma unroll
        for (int part = 0; part < 2; part++)
          b[c][part] = tile_x[buffer][k / 2 + part * 4 + lane % 4][j + c * 8];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) multiply<md_half>(sums[r][c], a[r], b[c][0], b[c][1]);
    }
    if (more) keep(buffer ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 8; r++) {
    const int filter = top + i + r * 8;
    if (filter >= FILTERS) continue;
#pragma unroll
    for (int c = 0; c < 8; c++) {
      const int at = left + j - lane / 4 + c / 2 * 8 + lane % 4 * 2 + c % 2;
      if (at < POSITIONS)
        y[(at / PLANE * FILTERS + filter) * PLANE + at % PLANE] =
            md_as<md_half>(sums[r / 2][c / 2][r % 2 * 2 + c % 2]);
    }
  }
}
