// Products in exact float32, from slabs in shared memory: RM x RN sums of a thread in groups of four.
// It stands in the namespace of each kernel that makes such.
//
// Of neighbouring lanes one pair shares its rows and the next its columns, which merges their reads
// of shared memory by twos.  A multiply-add reads three registers, of which two banks give one each a
// cycle and one is kept from the instruction before: so columns lie in shared memory with neighbours
// exchanged, which puts each into the other bank than the sum that it is added to, and the order goes
// to and fro along the columns, a row's number staying.  With sums and columns in the same bank
// multiply-adds took 61 % of the cycles on an H200.

// The first of a thread's rows, and of its columns, where TX threads lie across.
template <int TX> MD_FUNCTION int first_row(int thread) {
  const int lane = thread % 32, warp = thread / 32;
  return (warp / (TX / 8) * 4 + (lane >> 1 & 1 | lane >> 2 & 2)) * 4;
}
template <int TX> MD_FUNCTION int first_column(int thread) {
  const int lane = thread % 32, warp = thread / 32;
  return (warp % (TX / 8) * 8 + (lane & 1 | lane >> 1 & 2 | lane >> 2 & 4)) * 4;
}
// Adds DEEP products to each sum; lines of rows and of columns are LEFT and RIGHT numbers apart.
template <int DEEP, int TX, int TY, int LEFT, int RIGHT, int RM, int RN>
MD_FUNCTION void multiply(float (&sum)[RM][RN], const float *left, const float *right) {
  #pragma unroll 2
  for (int k = 0; k < DEEP; k++) {
    float a[RM / 4][4], b[RN / 4][4];
    #pragma unroll
    for (int g = 0; g < RM / 4; g++) md_load<4>(a[g], left + k * LEFT + g * TY * 4);
    #pragma unroll
    for (int g = 0; g < RN / 4; g++) md_load<4>(b[g], right + k * RIGHT + g * TX * 4);
    #pragma unroll
    for (int i = 0; i < RM; i++)
      #pragma unroll
      for (int fro = 0; fro < RN; fro++) {
        const int j = i % 2 ? RN - 1 - fro : fro;
        sum[i][j] = md_fma(a[i / 4][i % 4], b[j / 4][j % 4 ^ 1], sum[i][j]);
      }
  }
}
