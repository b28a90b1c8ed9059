// Words that are STRIDE apart.
//
// Neighbouring lanes copy words that are STRIDE apart; what lies between them is the part of other
// blocks.
//
// Expect: A sector of 32 bytes is fetched for each word once STRIDE is 8: an eighth of the rate.
// Beyond 8 nothing more is wasted of a sector, but of pages and rows of memory.
extern "C" __global__ void strided(const float *x, float *y, int count) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const int at = (blockIdx.x * BLOCK_X * BLOCK_Y + thread) * STRIDE + blockIdx.y;
  if (at < count) y[at] = x[at];
}
