// A warp's results by way of shared memory: a product leaves each thread pairs of columns, what
// follows takes eight columns side by side, which threads then write as whole chunks.  It stands
// in the namespace of each kernel that makes products on tensor cores.

// Sums as floats, and as they lie in registers.
MD_FUNCTION float as_float(float x) { return x; }
MD_FUNCTION float as_float(int x) { return (float)x; }
MD_FUNCTION float as_bits(float x) { return x; }
MD_FUNCTION float as_bits(int x) { return floatbits((unsigned int)x); }
// Sixteen rows of COLUMNS results, from the registers of a product to rows of PITCH numbers.
template <int COLUMNS, int PITCH, bool BITS = false, class Sum>
MD_FUNCTION void turn(float *rows, const Sum *c, int lane) {
  const auto number = [](Sum x) { return BITS ? as_bits(x) : as_float(x); };
  #pragma unroll
  for (int j = 0; j < COLUMNS / 8; j++) {
    float *at = rows + (lane >> 2) * PITCH + j * 8 + (lane & 3) * 2;
    *(float2 *)at = make_float2(number(c[4 * j]), number(c[4 * j + 1]));
    *(float2 *)(at + 8 * PITCH) = make_float2(number(c[4 * j + 2]), number(c[4 * j + 3]));
  }
}
// Eight columns of a row.  Odd rows read their halves in the other order: then no two rows share
// a bank.
MD_FUNCTION void read_turned(float (&a)[8], const float *from, int row) {
  const int turn = (row & 1) * 4;
  const float4 one = *(const float4 *)(from + turn), two = *(const float4 *)(from + 4 - turn);
  const float4 low = turn ? two : one, high = turn ? one : two;
  a[0] = low.x, a[1] = low.y, a[2] = low.z, a[3] = low.w;
  a[4] = high.x, a[5] = high.y, a[6] = high.z, a[7] = high.w;
}
// Rounded results of sixteen rows, for threads that write them as they are.  A row of whole 128
// bytes has no room behind it: its chunks change places, so that no two rows share a bank.
template <int COLUMNS> MD_FUNCTION int rounded_at(int row, int chunk) {
  return COLUMNS % 64 ? row * (COLUMNS + 8) + chunk * 8 : row * COLUMNS + (chunk ^ (row & 7)) * 8;
}
template <int COLUMNS, class T> MD_FUNCTION void turn_rounded(T *rows, const float *c, int lane) {
  #pragma unroll
  for (int i = 0; i < COLUMNS / 4; i++) {
    const float pair[2] = {c[2 * i], c[2 * i + 1]};
    const int row = (lane >> 2) + i % 2 * 8;
    md_write<2>(rows + rounded_at<COLUMNS>(row, i / 2) + (lane & 3) * 2, pair);
  }
}
