// Rows at a pitch.
//
// Rows are lengthened to a multiple of 32 words, as cudaMallocPitch does, and the words behind them
// are copied, too.
//
// Expect: Every row begins a line: four sectors a warp. The few words more cost less than they save.
extern "C" __global__ void pitched(const float *x, float *y, int count) {
  constexpr int PITCH = (WIDTH + 31) / 32 * 32;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, first = blockIdx.x * PITCH;
  for (int column = thread; column < PITCH; column += BLOCK_X * BLOCK_Y)
    if (first + column < count) y[first + column] = x[first + column];
}
