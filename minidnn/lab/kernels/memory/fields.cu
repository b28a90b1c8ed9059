// A structure of arrays.
//
// Each field is an array of its own: the lanes of an instruction copy one field of neighbouring
// structures.
//
// Expect: Four sectors for 32 words in each instruction, as few as there can be.
extern "C" __global__ void fields(const float *x, float *y, int count) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const int number = blockIdx.x * BLOCK_X * BLOCK_Y + thread, length = (count + FIELDS - 1) / FIELDS;
#pragma unroll
  for (int field = 0; field < FIELDS; field++) {
    const int at = field * length + number;
    if (number < length && at < count) y[at] = x[at];
  }
}
