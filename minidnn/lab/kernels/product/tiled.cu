// Square tiles in shared memory.
//
// A block copies a square of each factor to shared memory, and each number there is read by as many
// threads as the square is wide.
//
// Expect: Reads from L2 fall by the width of the tile. Shared memory is read twice a multiply-add,
// which is now the limit.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    tiled(const float *a, const float *b, float *y, int rows, int columns, int depth) {
  constexpr int TILE = BLOCK_X;  // blocks are square
  __shared__ float of_a[TILE][TILE], of_b[TILE][TILE];
  const int i = threadIdx.y, j = threadIdx.x;
  const int row = blockIdx.y * TILE + i, column = blockIdx.x * TILE + j;
  float sum = 0.0f;
  for (int first = 0; first < depth; first += TILE) {
    of_a[i][j] = row < rows && first + j < depth ? a[row * depth + first + j] : 0.0f;
    of_b[i][j] = first + i < depth && column < columns ? b[(first + i) * columns + column] : 0.0f;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE; k++) sum = fmaf(of_a[i][k], of_b[k][j], sum);
    __syncthreads();
  }
  if (row < rows && column < columns) y[row * columns + column] = sum;
}
