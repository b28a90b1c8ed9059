// Softmax of scores times values, where scores are queries times keys: no score passes through
// memory.  Printed by attention.py, which says what the names in dollars stand for.
//
// Each row's exponentials are taken of its distance from the largest score so far, and what was
// added up before is scaled when a larger one comes.
namespace attention_$NAME$ {
$SHARED$
enum { BLOCKS = (QUERIES + BLOCK - 1) / BLOCK, STEPS = (KEYS + TILE - 1) / TILE };
enum { STAGES = STEPS > 1 ? 2 : 1 };

extern "C" __global__ void __launch_bounds__(THREADS) $NAME$(
    const $T$ *__restrict__ q, const $T$ *__restrict__ k, const $T$ *__restrict__ v,
    $T$ *__restrict__ y, float *__restrict__ logs) {
  MD_SHARED;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int m0 = blockIdx.x % BLOCKS * BLOCK;
  const unsigned int head = blockIdx.x / (unsigned int)BLOCKS;
  $UNRAVEL$
  const int there = QUERIES - m0 - warp * 16;  // of the warp's rows, perhaps none or more
  const unsigned int shared = (unsigned int)__cvta_generic_to_shared(md_shared);
  auto load_step = [&](int step) {
    const int n0 = step * TILE, keys = min(KEYS - n0, (int)TILE);
    unsigned char *const to = md_shared + OWN_BYTES + step % STAGES * (2 * TILE_BYTES);
    load<TILE, DEPTH, PITCH, 8>(to, k + n0 * $STEP_K$ll, $STEP_K$ll, keys, SIZE);
    load<TILE, DEPTH, PITCH, 8>(to + TILE_BYTES, v + n0 * $STEP_V$ll, $STEP_V$ll, keys, SIZE);
    md_copy_commit();
  };
  load<BLOCK, DEPTH, PITCH, 8>(md_shared, q + m0 * $STEP_Q$ll, $STEP_Q$ll,
                               min(QUERIES - m0, (int)BLOCK), SIZE);
  load_step(0);
  Rows queries;
  float sums[DEPTH / 8][4], most[2], total[2] = {0.0f, 0.0f};
  begin(sums);
  most[0] = most[1] = floatbits(0xff800000u);
  for (int step = 0; step < STEPS; step++) {
    md_copy_wait();
    __syncthreads();
    if (step + 1 < STEPS) load_step(step + 1);
    if (step == 0) take_rows(queries, shared + warp * 16 * PITCH);
    if (there <= 0) continue;
    const unsigned int tile = shared + OWN_BYTES + step % STAGES * (2 * TILE_BYTES);
    const int keys = min(KEYS - step * TILE, (int)TILE);
    float scores[TILE / 8][4];
    multiply_rows(scores, queries, tile, keys);
    replace_behind(scores, keys, floatbits(0xff800000u));
    float next[2] = {most[0], most[1]}, base[2];
    #pragma unroll
    for (int j = 0; j < TILE / 8; j++)
      #pragma unroll
      for (int e = 0; e < 4; e++) next[e >> 1] = md_max(next[e >> 1], scores[j][e]);
    #pragma unroll
    for (int r = 0; r < 2; r++) {
      next[r] = md_max(next[r], __shfl_xor_sync(0xffffffffu, next[r], 1));
      next[r] = md_max(next[r], __shfl_xor_sync(0xffffffffu, next[r], 2));
      base[r] = next[r] == floatbits(0xff800000u) ? 0.0f : next[r] * $SCALE$f;
      const float kept = two_to(md_fma(most[r], $SCALE$f, -base[r]));
      most[r] = next[r];
      total[r] *= kept;
      #pragma unroll
      for (int j = 0; j < DEPTH / 8; j++) sums[j][2 * r] *= kept, sums[j][2 * r + 1] *= kept;
    }
    #pragma unroll
    for (int j = 0; j < TILE / 8; j++)
      #pragma unroll
      for (int e = 0; e < 4; e++) {
        scores[j][e] = two_to(md_fma(scores[j][e], $SCALE$f, -base[e >> 1]));
        total[e >> 1] += scores[j][e];
      }
    add_rows(sums, scores, tile + TILE_BYTES, keys);
  }
  if (there <= 0) return;
  total[0] = sum_of_four(total[0]);
  total[1] = sum_of_four(total[1]);
  const int row = m0 + warp * 16 + (lane >> 2);
  if ($KEEPS_LOGS$ && (lane & 3) == 0) {
    #pragma unroll
    for (int r = 0; r < 2; r++) {
      // Of a row of nothing but -inf this is -inf, and each exponential of the difference NaN.
      const float base = most[r] == floatbits(0xff800000u) ? 0.0f : most[r];
      if (row + r * 8 < QUERIES)
        logs[head * (long long)QUERIES + row + r * 8] =
            md_fma(base, $LOG_SCALE$f, md_log(total[r]));
    }
  }
  write_rows(y + (m0 + warp * 16) * $STEP_Y$ll, $STEP_Y$ll, sums, 1.0f / total[0],
             1.0f / total[1], md_shared + warp * 16 * PITCH, there);
}
}  // namespace attention_$NAME$
