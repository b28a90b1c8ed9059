// An array of structures.
//
// A thread copies a structure of FIELDS words, one after the other: lanes are FIELDS words apart,
// and what a lane leaves of a sector its next instruction takes.
//
// Expect: Each instruction touches FIELDS times the sectors of as many words side by side. L1 keeps
// them for the next one, so that memory sees each once.
extern "C" __global__ void structures(const float *x, float *y, int count) {
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const int first = (blockIdx.x * BLOCK_X * BLOCK_Y + thread) * FIELDS;
#pragma unroll
  for (int field = 0; field < FIELDS; field++)
    if (first + field < count) y[first + field] = x[first + field];
}
