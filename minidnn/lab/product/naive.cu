// One thread an element; threads that follow each other walk down a column of the result.
extern "C" __global__ void naive(const float *a, const float *b, float *y, int rows, int columns,
                                 int depth) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  const int column = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || column >= columns) return;
  float sum = 0.0f;
  for (int k = 0; k < depth; k++) sum = fmaf(a[row * depth + k], b[k * columns + column], sum);
  y[row * columns + column] = sum;
}
