// One thread an element, down the columns.
//
// A thread reads a row of the first factor and a column of the second. Threads of a warp have
// different rows: what they read and write at a time lies whole rows apart.
//
// Expect: Each read of the first factor touches 32 sectors for 32 numbers: about one percent of the
// peak.
extern "C" __global__ void naive(const float *a, const float *b, float *y, int rows, int columns,
                                 int depth) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int column = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || column >= columns) return;
  float sum = 0.0f;
  for (int k = 0; k < depth; k++) sum = fmaf(a[row * depth + k], b[k * columns + column], sum);
  y[row * columns + column] = sum;
}
