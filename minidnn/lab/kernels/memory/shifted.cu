// Misaligned words.
//
// Lanes copy neighbouring words, but each warp begins SHIFT words behind a line.
//
// Expect: Five sectors a warp instead of four. The fifth is also the first of the next warp, so L1
// or L2 has it: much less is lost than a fifth.
extern "C" __global__ void shifted(const float *x, float *y, int count) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const int at = blockIdx.x * BLOCK_X * BLOCK_Y + thread - (32 - SHIFT % 32) % 32;
  if (at >= 0 && at < count) y[at] = x[at];
}
