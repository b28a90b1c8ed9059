// The gradient of attention for its queries, and what each row's softmax takes off the gradients of
// its scores.  Printed by attention.py, which says what the names in dollars stand for.
namespace attention_$NAME$ {
$SHARED$
enum { BLOCKS = (QUERIES + BLOCK - 1) / BLOCK, STEPS = (KEYS + TILE - 1) / TILE };
enum { STAGES = STEPS > 1 ? 2 : 1 };

extern "C" __global__ void __launch_bounds__(THREADS, $BESIDE$) $NAME$(
    const $T$ *__restrict__ q, const $T$ *__restrict__ k, const $T$ *__restrict__ v,
    const $T$ *__restrict__ y, const $T$ *__restrict__ g, const float *__restrict__ logs,
    float *__restrict__ shares, $T$ *__restrict__ dq) {
  MD_SHARED;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int m0 = blockIdx.x % BLOCKS * BLOCK;
  const unsigned int head = blockIdx.x / (unsigned int)BLOCKS;
  $UNRAVEL$
  const int there = QUERIES - m0 - warp * 16;  // of the warp's rows, perhaps none or more
  const unsigned int shared = (unsigned int)__cvta_generic_to_shared(md_shared);
  auto load_step = [&](int step) {
    const int n0 = step * TILE, keys = min(KEYS - n0, (int)TILE);
    unsigned char *const to = md_shared + 3 * OWN_BYTES + step % STAGES * (2 * TILE_BYTES);
    load<TILE, DEPTH, PITCH, 8>(to, k + n0 * $STEP_K$ll, $STEP_K$ll, keys, SIZE);
    load<TILE, DEPTH, PITCH, 8>(to + TILE_BYTES, v + n0 * $STEP_V$ll, $STEP_V$ll, keys, SIZE);
    md_copy_commit();
  };
  const int rows = min(QUERIES - m0, (int)BLOCK);
  load<BLOCK, DEPTH, PITCH, 8>(md_shared, q + m0 * $STEP_Q$ll, $STEP_Q$ll, rows, SIZE);
  load<BLOCK, DEPTH, PITCH, 8>(md_shared + OWN_BYTES, g + m0 * $STEP_G$ll, $STEP_G$ll, rows, SIZE);
  load<BLOCK, DEPTH, PITCH, 8>(md_shared + 2 * OWN_BYTES, y + m0 * $STEP_Y$ll, $STEP_Y$ll, rows,
                               SIZE);
  load_step(0);
  const int row = m0 + warp * 16 + (lane >> 2);
  float log[2], share[2] = {0.0f, 0.0f};
  #pragma unroll
  for (int r = 0; r < 2; r++)
    log[r] = row + r * 8 < QUERIES
        ? logs[head * (long long)QUERIES + row + r * 8] * 1.44269504088896f : 0.0f;
  md_copy_wait();
  __syncthreads();
  const unsigned int own = shared + warp * 16 * PITCH;
  Rows queries, gradients;
  take_rows(gradients, own + OWN_BYTES);
  take_rows(queries, own + 2 * OWN_BYTES);  // results, until what they are needed for is known
  #pragma unroll
  for (int i = 0; i < DEPTH / 16; i++)
    #pragma unroll
    for (int e = 0; e < 8; e++)
      share[e >> 1 & 1] = md_fma(md_of_pairs<T>(gradients[i], e), md_of_pairs<T>(queries[i], e),
                                 share[e >> 1 & 1]);
  #pragma unroll
  for (int r = 0; r < 2; r++) {
    share[r] = sum_of_four(share[r]);
    if ((lane & 3) == 0 && row + r * 8 < QUERIES)
      shares[head * (long long)QUERIES + row + r * 8] = share[r];
  }
  take_rows(queries, own);
  float sums[DEPTH / 8][4];
  begin(sums);
  for (int step = 0; step < STEPS; step++) {
    if (step > 0) {
      md_copy_wait();
      __syncthreads();
    }
    if (step + 1 < STEPS) load_step(step + 1);
    if (there <= 0) continue;
    if ($AGAIN$ && step > 0) {  // else no thread has registers for them
      take_rows(queries, own);
      take_rows(gradients, own + OWN_BYTES);
    }
    const unsigned int tile = shared + 3 * OWN_BYTES + step % STAGES * (2 * TILE_BYTES);
    const int keys = min(KEYS - step * TILE, (int)TILE);
    float scores[TILE / 8][4], changes[TILE / 8][4];
    multiply_rows(scores, queries, tile, keys);
    multiply_rows(changes, gradients, tile + TILE_BYTES, keys);
    #pragma unroll
    for (int j = 0; j < TILE / 8; j++)
      #pragma unroll
      for (int e = 0; e < 4; e++) {
        const float weight = two_to(md_fma(scores[j][e], $SCALE$f, -log[e >> 1]));
        changes[j][e] = weight * (changes[j][e] - share[e >> 1]);
      }
    replace_behind(changes, keys, 0.0f);
    add_rows(sums, changes, tile, keys);
  }
  if (there <= 0) return;
  write_rows(dq + (m0 + warp * 16) * $STEP_DQ$ll, $STEP_DQ$ll, sums, $FACTOR$f, $FACTOR$f,
             md_shared + warp * 16 * PITCH, there);
}
}  // namespace attention_$NAME$
