// Rows that begin anywhere.
//
// A block copies a row of WIDTH words. Rows follow each other without a gap, so that most begin
// within a sector.
//
// Expect: Each warp touches five sectors where four would do, and the row's last warp is not full.
extern "C" __global__ void rows(const float *x, float *y, int count) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, first = blockIdx.x * WIDTH;
  for (int column = thread; column < WIDTH; column += BLOCK_X * BLOCK_Y)
    if (first + column < count) y[first + column] = x[first + column];
}
