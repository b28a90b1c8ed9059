// Products of batches of matrices on tensor cores.  Printed by matmul.py, which says what the
// names in dollars stand for.
//
// A block makes a tile of BM rows by BN columns.  An operand lies in shared memory as in memory:
// lines of elements that follow each other, which are either those of a row or column of the result
// or those of one of the BK products.  Lines begin an odd number of 16 bytes apart, so that eight
// lines never share a bank.
namespace product_$NAME$ {
typedef $T$ T;
enum { M = $M$, N = $N$, K = $K$ };
enum { BM = $BM$, BN = $BN$, BK = $BK$, WM = $WM$, WN = $WN$ };
enum { WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32 };
enum { TILES_N = (N + BN - 1) / BN, TILES = (M + BM - 1) / BM * TILES_N };
enum { STEPS = (K + BK - 1) / BK, STAGES = STEPS > 1 ? 2 : 1 };
// Whether an operand's lines are those of products.
enum { TURNED_A = $TURNED_A$, TURNED_B = $TURNED_B$ };
enum { LINES_A = TURNED_A ? BK : BM, LINE_A = TURNED_A ? BM : BK };
enum { LINES_B = TURNED_B ? BK : BN, LINE_B = TURNED_B ? BN : BK };
enum { PITCH_A = (LINE_A / 8 | 1) * 16, PITCH_B = (LINE_B / 8 | 1) * 16 };
enum { BYTES_A = LINES_A * PITCH_A, STAGE = BYTES_A + LINES_B * PITCH_B };
enum { PITCH_Y = (BN / 8 | 1) * 16 };

$FRAGMENTS$
extern "C" __global__ void __launch_bounds__(THREADS) $NAME$(
    const $T$ *__restrict__ a, const $T$ *__restrict__ b, $T$ *__restrict__ y) {
  MD_SHARED;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int tile = blockIdx.x % TILES, m0 = tile / TILES_N * BM, n0 = tile % TILES_N * BN;
  $UNRAVEL$
  a += $FIRST_A$;
  b += $FIRST_B$;
  y += m0 * $STEP_Y$ll + n0;
  const int rows = min(M - m0, (int)BM), columns = min(N - n0, (int)BN);

  auto load_step = [&](int step) {
    unsigned char *const to = md_shared + step % STAGES * STAGE;
    const int k0 = step * BK, products = min(K - k0, (int)BK);
    load<LINES_A, LINE_A, PITCH_A, $WIDTH_A$>(to, a + k0 * $STEP_K_A$ll, $STEP_A$ll,
                                              TURNED_A ? products : rows,
                                              TURNED_A ? rows : products);
    load<LINES_B, LINE_B, PITCH_B, $WIDTH_B$>(to + BYTES_A, b + k0 * $STEP_K_B$ll, $STEP_B$ll,
                                              TURNED_B ? products : columns,
                                              TURNED_B ? columns : products);
    md_copy_commit();
  };

  const int wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
  // Where this thread's part of a warp's fragments begins: of lines of products, or of others.
  const int line_a = TURNED_A ? (lane & 7) + (lane >> 4) * 8 : wm + (lane & 15);
  const int byte_a = TURNED_A ? wm * 2 + (lane >> 3 & 1) * 16 : (lane >> 4) * 16;
  const int line_b = TURNED_B ? lane & 15 : wn + (lane & 7) + (lane >> 4) * 8;
  const int byte_b = TURNED_B ? wn * 2 + (lane >> 4) * 16 : (lane >> 3 & 1) * 16;
  float c[WM / 16][WN / 8][4];
  #pragma unroll
  for (int i = 0; i < WM / 16; i++)
    #pragma unroll
    for (int j = 0; j < WN / 8; j++)
      #pragma unroll
      for (int k = 0; k < 4; k++) c[i][j][k] = 0.0f;

  load_step(0);
  for (int step = 0; step < STEPS; step++) {
    md_copy_wait();
    __syncthreads();
    if (step + 1 < STEPS) load_step(step + 1);
    const unsigned int from = (unsigned int)__cvta_generic_to_shared(md_shared)
                              + step % STAGES * STAGE;
    const unsigned int of_a = from + line_a * PITCH_A + byte_a;
    const unsigned int of_b = from + BYTES_A + line_b * PITCH_B + byte_b;
    const int products = min(K - step * BK, (int)BK);
    #pragma unroll
    for (int k = 0; k < BK; k += 16) {
      if (k >= products) break;
      unsigned int p[WM / 16][4];
      #pragma unroll
      for (int i = 0; i < WM / 16; i++)
        if (TURNED_A) fragments_turned(p[i], of_a + k * PITCH_A + i * 32);
        else fragments(p[i], of_a + i * 16 * PITCH_A + k * 2);
      #pragma unroll
      for (int j = 0; j < WN / 16; j++) {
        unsigned int q[4];
        if (TURNED_B) fragments_turned(q, of_b + k * PITCH_B + j * 32);
        else fragments(q, of_b + j * 16 * PITCH_B + k * 2);
        #pragma unroll
        for (int i = 0; i < WM / 16; i++) {
          multiply<T>(c[i][2 * j], p[i], q[0], q[1]);
          multiply<T>(c[i][2 * j + 1], p[i], q[2], q[3]);
        }
      }
    }
  }

  // Results pass through shared memory, so that whole lines are written.
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < WM / 16; i++)
    #pragma unroll
    for (int j = 0; j < WN / 8; j++)
      #pragma unroll
      for (int k = 0; k < 2; k++) {
        const int row = wm + i * 16 + k * 8 + (lane >> 2), column = wn + j * 8 + (lane & 3) * 2;
        *(unsigned int *)(md_shared + row * PITCH_Y + column * 2) =
            md_as_pair(T(), c[i][j][k * 2]$FACTOR$, c[i][j][k * 2 + 1]$FACTOR$);
      }
  __syncthreads();
  if ($WIDTH_Y$ == 8) {
    #pragma unroll 4
    for (int i = thread; i < BM * (BN / 8); i += THREADS) {
      const int row = i / (BN / 8), column = i % (BN / 8) * 8;
      if (row < rows && column < columns)
        md_write_word(y + row * $STEP_Y$ll + column,
                      *(const uint4 *)(md_shared + row * PITCH_Y + column * 2));
    }
    return;
  }
  for (int row = warp; row < rows; row += WARPS) {
    T *const to = y + row * $STEP_Y$ll;
    const unsigned short *const made = (const unsigned short *)(md_shared + row * PITCH_Y);
    const int odd = (int)((unsigned long long)to >> 1 & 1);  // words begin behind one element
    for (int column = lane * 2 - odd; column < columns; column += 64) {
      if (column >= 0 && column + 1 < columns)
        *(unsigned int *)(to + column) = (unsigned int)made[column + 1] << 16 | made[column];
      else
        to[max(column, 0)].bits = made[max(column, 0)];
    }
  }
}
}  // namespace product_$NAME$
