// As before, but threads that follow each other walk along a row of the result.
extern "C" __global__ void coalesced(const float *a, const float *b, float *y, int rows,
                                     int columns, int depth) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  if (row >= rows || column >= columns) return;
  float sum = 0.0f;
  for (int k = 0; k < depth; k++) sum = fmaf(a[row * depth + k], b[k * columns + column], sum);
  y[row * columns + column] = sum;
}
