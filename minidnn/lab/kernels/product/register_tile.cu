// A square of elements a thread.
//
// THREAD_ROWS x THREAD_COLUMNS sums are in registers: 16 reads serve 64 multiply-adds. A thread's
// rows and columns are apart, so that threads of a warp read neighbouring words.
//
// Expect: A quarter of a read a multiply-add: arithmetic becomes the limit for the first time.
// Registers allow few warps, which have enough independent work.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    register_tile(const float *a, const float *b, float *y, int rows, int columns, int depth) {
  constexpr int TILE_ROWS = BLOCK_Y * THREAD_ROWS, TILE_COLUMNS = BLOCK_X * THREAD_COLUMNS;
  constexpr int THREADS = BLOCK_X * BLOCK_Y;
  __shared__ float of_a[TILE_ROWS][TILE_DEPTH + 1], of_b[TILE_DEPTH][TILE_COLUMNS];
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const int i = threadIdx.y, j = threadIdx.x, thread = i * BLOCK_X + j;
  float sums[THREAD_ROWS][THREAD_COLUMNS] = {};
  for (int first = 0; first < depth; first += TILE_DEPTH) {
    for (int at = thread; at < TILE_ROWS * TILE_DEPTH; at += THREADS) {
      const int row = top + at / TILE_DEPTH, k = first + at % TILE_DEPTH;
      of_a[at / TILE_DEPTH][at % TILE_DEPTH] = row < rows && k < depth ? a[row * depth + k] : 0.0f;
    }
    for (int at = thread; at < TILE_DEPTH * TILE_COLUMNS; at += THREADS) {
      const int k = first + at / TILE_COLUMNS, column = left + at % TILE_COLUMNS;
      of_b[at / TILE_COLUMNS][at % TILE_COLUMNS] =
          k < depth && column < columns ? b[k * columns + column] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      float down[THREAD_ROWS], right[THREAD_COLUMNS];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; r++) down[r] = of_a[i + r * BLOCK_Y][k];
#pragma unroll
      for (int c = 0; c < THREAD_COLUMNS; c++) right[c] = of_b[k][j + c * BLOCK_X];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
        for (int c = 0; c < THREAD_COLUMNS; c++) sums[r][c] = fmaf(down[r], right[c], sums[r][c]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
    for (int c = 0; c < THREAD_COLUMNS; c++) {
      const int row = top + i + r * BLOCK_Y, column = left + j + c * BLOCK_X;
      if (row < rows && column < columns) y[row * columns + column] = sums[r][c];
    }
}
