// Reads side by side.
//
// Neighbouring lanes read neighbouring numbers of a row, and write them a whole column of the
// result apart.
//
// Expect: Each write of a warp touches 32 sectors where 4 would do, so L2 takes eight times as many
// as it should.
extern "C" __global__ void rows(const float *x, float *y, int height, int width) {
  const int column = blockIdx.x * BLOCK_X + threadIdx.x;
  const int row = blockIdx.y * BLOCK_Y + threadIdx.y;
  if (row < height && column < width) y[column * height + row] = x[row * width + column];
}
