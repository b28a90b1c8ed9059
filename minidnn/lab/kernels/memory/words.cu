// Words of four bytes.
//
// Neighbouring lanes copy neighbouring words, and each warp begins a line.
//
// Expect: No byte too many. One word of each thread is on its way at a time, which may not be
// enough to keep memory busy.
extern "C" __global__ void words(const float *x, float *y, int count) {
  const int at = blockIdx.x * BLOCK_X * BLOCK_Y + threadIdx.y * BLOCK_X + threadIdx.x;
  if (at < count) y[at] = x[at];
}
