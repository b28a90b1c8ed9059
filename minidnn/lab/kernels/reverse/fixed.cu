// Reversed in shared memory whose size stands in the text.
//
// A block keeps its words in shared memory, waits, and each thread writes the word of its opposite:
// lanes write in their own order.
//
// Expect: The barrier makes every warp wait for the slowest of the block; nothing is gained, since
// direct was coalesced already.
extern "C" __global__ void fixed(const float *x, float *y, int count) {
  constexpr int THREADS = BLOCK_X * BLOCK_Y;
  __shared__ float kept[THREADS];
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, first = blockIdx.x * THREADS;
  if (first + thread < count) kept[thread] = x[first + thread];
  __syncthreads();
  const int last = min(THREADS, count - first) - 1;
  if (thread <= last) y[count - 1 - first - last + thread] = kept[last - thread];
}
