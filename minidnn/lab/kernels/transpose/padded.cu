// Rows of the tile one longer.
//
// A row of the tile has a number more than it needs, so that those of a column lie in different
// banks.
//
// Expect: No lane waits for another: as fast as a copy.
extern "C" __global__ void padded(const float *x, float *y, int height, int width) {
  __shared__ float tile[BLOCK_X][BLOCK_X + 1];
  const int left = blockIdx.x * BLOCK_X, top = blockIdx.y * BLOCK_X;
  for (int i = threadIdx.y; i < BLOCK_X; i += BLOCK_Y)
    if (top + i < height && left + threadIdx.x < width)
      tile[i][threadIdx.x] = x[(top + i) * width + left + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < BLOCK_X; i += BLOCK_Y)
    if (left + i < width && top + threadIdx.x < height)
      y[(left + i) * height + top + threadIdx.x] = tile[threadIdx.x][i];
}
