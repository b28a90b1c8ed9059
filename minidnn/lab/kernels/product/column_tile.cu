// Several elements of a column a thread.
//
// A thread keeps THREAD_ROWS sums in registers: a number of the second factor is read once for all
// of them. A block goes TILE_DEPTH products on at a time. Rows of the first tile are one number
// longer, so that threads below each other use different banks.
//
// Expect: Nearly half the reads of shared memory a multiply-add, and larger tiles: fewer reads from
// L2.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    column_tile(const float *a, const float *b, float *y, int rows, int columns, int depth) {
  constexpr int TILE_ROWS = BLOCK_Y * THREAD_ROWS, TILE_COLUMNS = BLOCK_X;
  constexpr int THREADS = BLOCK_X * BLOCK_Y;
  __shared__ float of_a[TILE_ROWS][TILE_DEPTH + 1], of_b[TILE_DEPTH][TILE_COLUMNS];
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const int i = threadIdx.y * THREAD_ROWS, j = threadIdx.x;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  float sums[THREAD_ROWS] = {};
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
      const float right = of_b[k][j];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; r++) sums[r] = fmaf(of_a[i + r][k], right, sums[r]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < THREAD_ROWS; r++)
    if (top + i + r < rows && left + j < columns)
      y[(top + i + r) * columns + left + j] = sums[r];
}
