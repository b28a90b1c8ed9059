// Words of eight bytes.
//
// A thread copies a float2: twice the bytes with as many instructions.
//
// Expect: Twice as many bytes are on their way, so that memory is busier.
extern "C" __global__ void pairs(const float2 *x, float2 *y, int count) {
  const int at = blockIdx.x * BLOCK_X * BLOCK_Y + threadIdx.y * BLOCK_X + threadIdx.x;
  if (at < count / 2) y[at] = x[at];
}
