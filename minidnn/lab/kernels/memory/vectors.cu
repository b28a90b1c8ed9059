// Words of sixteen bytes.
//
// A thread copies a float4, the most that one instruction takes.
//
// Expect: The rate of a copy by the library, in DRAM and in L2.
extern "C" __global__ void vectors(const float4 *x, float4 *y, int count) {
  const int at = blockIdx.x * BLOCK_X * BLOCK_Y + threadIdx.y * BLOCK_X + threadIdx.x;
  if (at < count / 4) y[at] = x[at];
}
