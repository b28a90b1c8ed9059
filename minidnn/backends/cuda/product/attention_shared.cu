// What kernels of attention share.  A block takes BLOCK queries or keys, a warp 16 of them, and
// passes over the others in tiles of TILE.  SIZE features of a head are DEPTH in shared memory,
// zeros behind them; rows begin an odd number of 16 bytes apart.
typedef $T$ T;
enum { QUERIES = $QUERIES$, KEYS = $KEYS$, SIZE = $SIZE$, DEPTH = (SIZE + 15) / 16 * 16 };
enum { BLOCK = 64, TILE = $TILE$, WARPS = BLOCK / 16, THREADS = WARPS * 32 };
enum { PITCH = (DEPTH / 8 | 1) * 16, OWN_BYTES = BLOCK * PITCH, TILE_BYTES = TILE * PITCH };

$FRAGMENTS$

#ifdef __CUDACC__
MD_FUNCTION float two_to(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Sixteen rows of DEPTH features, as registers have the first operand of products.
typedef unsigned int Rows[DEPTH / 16][4];
MD_FUNCTION void take_rows(Rows &rows, unsigned int from) {
  const int lane = threadIdx.x & 31;
  #pragma unroll
  for (int k = 0; k < DEPTH / 16; k++)
    fragments(rows[k], from + (lane & 15) * PITCH + (lane >> 4) * 16 + k * 32);
}

// Sums of products for sixteen rows and the columns of so many eights.
template <int EIGHTS> MD_FUNCTION void begin(float (&sums)[EIGHTS][4]) {
  #pragma unroll
  for (int j = 0; j < EIGHTS; j++)
    #pragma unroll
    for (int e = 0; e < 4; e++) sums[j][e] = 0.0f;
}

// Rows times the rows of a tile, of which so many are there: a sum for each pair of them.
MD_FUNCTION void multiply_rows(float (&sums)[TILE / 8][4], const Rows &rows, unsigned int tile,
                               int there) {
  const int lane = threadIdx.x & 31;
  const unsigned int from = tile + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * 16;
  begin(sums);
  #pragma unroll
  for (int j = 0; j < TILE / 16; j++) {
    if (j * 16 >= there) break;
    #pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) {
      unsigned int q[4];
      fragments(q, from + j * 16 * PITCH + k * 32);
      multiply<T>(sums[2 * j], rows[k], q[0], q[1]);
      multiply<T>(sums[2 * j + 1], rows[k], q[2], q[3]);
    }
  }
}

// Adds a factor for each row and each of the tile's, times the features of that.
MD_FUNCTION void add_rows(float (&sums)[DEPTH / 8][4], const float (&factors)[TILE / 8][4],
                          unsigned int tile, int there) {
  const int lane = threadIdx.x & 31;
  const unsigned int from = tile + (lane & 15) * PITCH + (lane >> 4) * 16;
  #pragma unroll
  for (int k = 0; k < TILE / 16; k++) {
    if (k * 16 >= there) break;
    const unsigned int p[4] = {
        md_as_pair(T(), factors[2 * k][0], factors[2 * k][1]),
        md_as_pair(T(), factors[2 * k][2], factors[2 * k][3]),
        md_as_pair(T(), factors[2 * k + 1][0], factors[2 * k + 1][1]),
        md_as_pair(T(), factors[2 * k + 1][2], factors[2 * k + 1][3]),
    };
    #pragma unroll
    for (int j = 0; j < DEPTH / 16; j++) {
      unsigned int q[4];
      fragments_turned(q, from + k * 16 * PITCH + j * 32);
      multiply<T>(sums[2 * j], p, q[0], q[1]);
      multiply<T>(sums[2 * j + 1], p, q[2], q[3]);
    }
  }
}

// Writes a warp's rows, of which so many are there, times a factor of each; they pass through
// memory that is the warp's own.
MD_FUNCTION void write_rows(T *to, long long step, const float (&sums)[DEPTH / 8][4], float low,
                            float high, unsigned char *own, int there) {
  const int lane = threadIdx.x & 31;
  __syncwarp();
  #pragma unroll
  for (int j = 0; j < DEPTH / 8; j++) {
    unsigned char *const at = own + (lane >> 2) * PITCH + j * 16 + (lane & 3) * 4;
    *(unsigned int *)at = md_as_pair(T(), sums[j][0] * low, sums[j][1] * low);
    *(unsigned int *)(at + 8 * PITCH) = md_as_pair(T(), sums[j][2] * high, sums[j][3] * high);
  }
  __syncwarp();
  #pragma unroll
  for (int i = lane; i < 16 * (SIZE / 8); i += 32) {
    const int row = i / (SIZE / 8), chunk = i % (SIZE / 8);
    if (row < there)
      md_write_word(to + row * step + chunk * 8, *(const uint4 *)(own + row * PITCH + chunk * 16));
  }
}

// Another number for each column of a tile behind those that are there.
MD_FUNCTION void replace_behind(float (&numbers)[TILE / 8][4], int there, float other) {
  if (there == TILE) return;
  #pragma unroll
  for (int j = 0; j < TILE / 8; j++)
    #pragma unroll
    for (int e = 0; e < 4; e++)
      if (j * 8 + (threadIdx.x & 3) * 2 + (e & 1) >= there) numbers[j][e] = other;
}

// What four threads have of a row, together.
MD_FUNCTION float sum_of_four(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
