// Reversed in shared memory whose size the launch says.
//
// The array is extern, and its bytes are an argument of the launch: one text serves every block.
//
// Expect: The time of the step before. Registers and instructions are the same.
extern "C" __global__ void sized(const float *x, float *y, int count) {
  extern __shared__ float kept[];
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  const int first = blockIdx.x * threads;
  if (first + thread < count) kept[thread] = x[first + thread];
  __syncthreads();
  const int last = min(threads, count - first) - 1;
  if (thread <= last) y[count - 1 - first - last + thread] = kept[last - thread];
}
