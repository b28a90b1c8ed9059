// Tiles that are on their way while others are multiplied.
//
// A copy from memory to shared memory is started and not waited for: it needs no register on its
// way, and no instruction when it arrives. So several tiles can be on their way, STAGES - 1 of
// them, and a thread waits only for the oldest.
//
// Expect: The latency of memory disappears behind more products, with fewer registers. Copies of
// four bytes cost as many instructions as reads did, so what is limited by those gains little.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y, RESIDENT)
    async(const float *x, const float *w, float *y) {
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH, DEPTH = CHANNELS * WINDOW;
  constexpr int LOWER = HEIGHT + 2 * PADDING - (WINDOW_HEIGHT - 1) * DILATION - 1;
  constexpr int RIGHT = WIDTH + 2 * PADDING - (WINDOW_WIDTH - 1) * DILATION - 1;
  constexpr int OUT_HEIGHT = LOWER / STRIDE + 1, OUT_WIDTH = RIGHT / STRIDE + 1;
  constexpr int PLANE = OUT_HEIGHT * OUT_WIDTH, POSITIONS = BATCH * PLANE;
  constexpr int THREADS = BLOCK_X * BLOCK_Y, ROWS = BLOCK_Y * 8, COLUMNS = BLOCK_X * 8;
  constexpr int APART = THREADS / TILE_DEPTH, TURNS_W = (ROWS + APART - 1) / APART;
  constexpr int TURNS_X = TILE_DEPTH / (BLOCK_Y / 8);  // of the threads that share a column
  __shared__ float4 tile_w[STAGES][TILE_DEPTH][ROWS / 4 + 1];
  __shared__ float4 tile_x[STAGES][TILE_DEPTH][COLUMNS / 4];
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int i = warp / (BLOCK_X / 4) * 8 + lane / 4, j = warp % (BLOCK_X / 4) * 4 + lane % 4;
  const int top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS;
  const int own_row = thread / TILE_DEPTH, own_k = thread % TILE_DEPTH;  // of the weights' tile
  const auto weights = w + (top + own_row) * DEPTH + own_k;
  const int deep = thread / COLUMNS * TURNS_X, position = left + thread % COLUMNS;
  // Where the window of the thread's position begins: of positions that are not, below the image.
  const int in_plane = position % PLANE;
  const int row = position < POSITIONS ? in_plane / OUT_WIDTH * STRIDE - PADDING : HEIGHT;
  const int column = in_plane % OUT_WIDTH * STRIDE - PADDING;
  const auto mine = x + position / PLANE * (CHANNELS * HEIGHT * WIDTH) + row * WIDTH + column;
  const auto fetch = [&](int first, int stage) {
#pragma unroll
    for (int turn = 0; turn < TURNS_W; turn++) {
      const int r = own_row + turn * APART;
      if (r >= ROWS) break;
      const bool inside = top + r < FILTERS && first + own_k < DEPTH;
      const float *const from = inside ? weights + turn * APART * DEPTH + first : w;
      md_copy_if<4>((float *)tile_w[stage][own_k] + r, from, inside);
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_X; turn++) {
      const int k = first + deep + turn, channel = k / WINDOW, tap = k % WINDOW;
      const int r = tap / WINDOW_WIDTH * DILATION, c = tap % WINDOW_WIDTH * DILATION;
      const bool inside = k < DEPTH && row + r >= 0 && row + r < HEIGHT && column + c >= 0 &&
                          column + c < WIDTH;
      const float *const from = inside ? mine + channel * (HEIGHT * WIDTH) + r * WIDTH + c : x;
      md_copy_if<4>((float *)tile_x[stage][deep + turn] + thread % COLUMNS, from, inside);
    }
    md_copy_commit();
  };
  float sums[8][8] = {};
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) fetch(stage * TILE_DEPTH, stage);
  for (int first = 0, stage = 0; first < DEPTH; first += TILE_DEPTH) {
    md_copy_wait_but<STAGES - 2>();
    __syncthreads();  // all have copied this tile, and nobody reads the one before any more
    fetch(first + (STAGES - 1) * TILE_DEPTH, stage == 0 ? STAGES - 1 : stage - 1);
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      const float4 down[2] = {tile_w[stage][k][i], tile_w[stage][k][i + BLOCK_Y]};
      const float4 right[2] = {tile_x[stage][k][j], tile_x[stage][k][j + BLOCK_X]};
#pragma unroll
      for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c++)
          sums[r][c] = fmaf(((const float *)down)[r], ((const float *)right)[c], sums[r][c]);
    }
    stage = stage + 1 == STAGES ? 0 : stage + 1;
  }
#pragma unroll
  for (int c = 0; c < 8; c += 4) {
    const int first = left + (j + c / 4 * BLOCK_X) * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const int filter = top + (i + r / 4 * BLOCK_Y) * 4 + r % 4;
      if (filter >= FILTERS) continue;
      if (PLANE % 4 == 0) {  // four firsts are of one image, and whole vectors
        const float4 four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
        const int at = (first / PLANE * FILTERS + filter) * PLANE + first % PLANE;
        if (first < POSITIONS) *(float4 *)(y + at) = four;
        continue;
      }
#pragma unroll
      for (int one = 0; one < 4; one++) {
        const int at = ((first + one) / PLANE * FILTERS + filter) * PLANE;
        if (first + one < POSITIONS) y[at + (first + one) % PLANE] = sums[r][c + one];
      }
    }
  }
}
