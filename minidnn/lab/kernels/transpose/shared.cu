// A tile in shared memory.
//
// A block reads a square tile by rows, and writes it by rows of the result: shared memory is what
// is read across.
//
// Expect: Reads and writes of memory are whole. But a column of a tile of 32 lies in one bank, and
// its lanes wait for each other.
extern "C" __global__ void shared(const float *x, float *y, int height, int width) {
  __shared__ float tile[BLOCK_X][BLOCK_X];
  const int left = blockIdx.x * BLOCK_X, top = blockIdx.y * BLOCK_X;
  for (int i = threadIdx.y; i < BLOCK_X; i += BLOCK_Y)
    if (top + i < height && left + threadIdx.x < width)
      tile[i][threadIdx.x] = x[(top + i) * width + left + threadIdx.x];
  __syncthreads();
  for (int i = threadIdx.y; i < BLOCK_X; i += BLOCK_Y)
    if (left + i < width && top + threadIdx.x < height)
      y[(left + i) * height + top + threadIdx.x] = tile[threadIdx.x][i];
}
