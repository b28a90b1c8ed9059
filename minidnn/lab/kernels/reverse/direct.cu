// Written backwards.
//
// Lanes read neighbouring words and write them in the opposite order.
//
// Expect: A line is a line in either direction: as fast as a copy of words.
extern "C" __global__ void direct(const float *x, float *y, int count) {
  const int at = blockIdx.x * BLOCK_X * BLOCK_Y + threadIdx.y * BLOCK_X + threadIdx.x;
  if (at < count) y[count - 1 - at] = x[at];
}
