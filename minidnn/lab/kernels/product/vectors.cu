// Four numbers an access.
//
// Global and shared memory are read as float4. The first factor's tile lies transposed, so that
// four rows of it are one vector.
//
// Expect: A quarter of the read instructions, which leaves the scheduler to multiply-adds.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    vectors(const float *a, const float *b, float *y, int rows, int columns, int depth) {
  constexpr int TILE_ROWS = BLOCK_Y * THREAD_ROWS, TILE_COLUMNS = BLOCK_X * THREAD_COLUMNS;
  constexpr int THREADS = BLOCK_X * BLOCK_Y, DEEP = TILE_DEPTH / 4, ACROSS = TILE_COLUMNS / 4;
  __shared__ float4 of_a[TILE_DEPTH][TILE_ROWS / 4 + 1], of_b[TILE_DEPTH][ACROSS];
  const float4 zeros = {0.0f, 0.0f, 0.0f, 0.0f};
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const int i = threadIdx.y, j = threadIdx.x, thread = i * BLOCK_X + j;
  float sums[THREAD_ROWS][THREAD_COLUMNS] = {};
  for (int first = 0; first < depth; first += TILE_DEPTH) {
    for (int at = thread; at < TILE_ROWS * DEEP; at += THREADS) {
      const int row = at / DEEP, k = at % DEEP * 4;
      const bool inside = top + row < rows && first + k < depth;
      const float4 four = inside ? *(const float4 *)(a + (top + row) * depth + first + k) : zeros;
      ((float *)of_a[k])[row] = four.x;
      ((float *)of_a[k + 1])[row] = four.y;
      ((float *)of_a[k + 2])[row] = four.z;
      ((float *)of_a[k + 3])[row] = four.w;
    }
    for (int at = thread; at < TILE_DEPTH * ACROSS; at += THREADS) {
      const int k = first + at / ACROSS, column = left + at % ACROSS * 4;
      const bool inside = k < depth && column < columns;
      of_b[at / ACROSS][at % ACROSS] = inside ? *(const float4 *)(b + k * columns + column) : zeros;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      float4 down[THREAD_ROWS / 4], right[THREAD_COLUMNS / 4];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS / 4; r++) down[r] = of_a[k][i + r * BLOCK_Y];
#pragma unroll
      for (int c = 0; c < THREAD_COLUMNS / 4; c++) right[c] = of_b[k][j + c * BLOCK_X];
#pragma unroll
      for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
        for (int c = 0; c < THREAD_COLUMNS; c++)
          sums[r][c] = fmaf(((float *)down)[r], ((float *)right)[c], sums[r][c]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < THREAD_ROWS; r++)
#pragma unroll
    for (int c = 0; c < THREAD_COLUMNS; c += 4) {
      const int row = top + (i + r / 4 * BLOCK_Y) * 4 + r % 4;
      const int column = left + (j + c / 4 * BLOCK_X) * 4;
      const float4 four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
      if (row < rows && column < columns) *(float4 *)(y + row * columns + column) = four;
    }
}
