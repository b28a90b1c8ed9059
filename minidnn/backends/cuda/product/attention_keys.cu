// The gradients of attention for its keys and values, whose rows a block has: it passes over
// queries, with what attention_queries.cu leaves for each.  Printed by attention.py, which says what
// the names in dollars stand for.
namespace attention_$NAME$ {
$SHARED$
enum { BLOCKS = (KEYS + BLOCK - 1) / BLOCK, STEPS = (QUERIES + TILE - 1) / TILE };
enum { STAGES = STEPS > 1 ? 2 : 1, STAGE = 2 * TILE_BYTES + 2 * TILE * 4 };

extern "C" __global__ void __launch_bounds__(THREADS, $BESIDE$) $NAME$(
    const $T$ *__restrict__ q, const $T$ *__restrict__ k, const $T$ *__restrict__ v,
    const $T$ *__restrict__ g, const float *__restrict__ logs, const float *__restrict__ shares,
    $T$ *__restrict__ dk, $T$ *__restrict__ dv) {
  MD_SHARED;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int m0 = blockIdx.x % BLOCKS * BLOCK;
  const unsigned int head = blockIdx.x / (unsigned int)BLOCKS;
  $UNRAVEL$
  const int there = KEYS - m0 - warp * 16;  // of the warp's rows, perhaps none or more
  const unsigned int shared = (unsigned int)__cvta_generic_to_shared(md_shared);
  auto load_step = [&](int step) {
    const int n0 = step * TILE, queries = min(QUERIES - n0, (int)TILE);
    unsigned char *const to = md_shared + 2 * OWN_BYTES + step % STAGES * STAGE;
    load<TILE, DEPTH, PITCH, 8>(to, q + n0 * $STEP_Q$ll, $STEP_Q$ll, queries, SIZE);
    load<TILE, DEPTH, PITCH, 8>(to + TILE_BYTES, g + n0 * $STEP_G$ll, $STEP_G$ll, queries, SIZE);
    md_copy_commit();
    float *const of_queries = (float *)(to + 2 * TILE_BYTES);
    if ((int)threadIdx.x < TILE) {
      const long long place = head * (long long)QUERIES + n0 + threadIdx.x;
      const bool inside = (int)threadIdx.x < queries;
      of_queries[threadIdx.x] = inside ? logs[place] * 1.44269504088896f : 0.0f;
      of_queries[TILE + threadIdx.x] = inside ? shares[place] : 0.0f;
    }
  };
  const int rows = min(KEYS - m0, (int)BLOCK);
  load<BLOCK, DEPTH, PITCH, 8>(md_shared, k + m0 * $STEP_K$ll, $STEP_K$ll, rows, SIZE);
  load<BLOCK, DEPTH, PITCH, 8>(md_shared + OWN_BYTES, v + m0 * $STEP_V$ll, $STEP_V$ll, rows, SIZE);
  load_step(0);
  Rows keys, values;
  float of_keys[DEPTH / 8][4], of_values[DEPTH / 8][4];
  begin(of_keys);
  begin(of_values);
  for (int step = 0; step < STEPS; step++) {
    md_copy_wait();
    __syncthreads();
    if (step + 1 < STEPS) load_step(step + 1);
    if (there <= 0) continue;
    const bool again = step == 0 || $AGAIN$;  // else no thread has registers for them
    if (again) take_rows(keys, shared + warp * 16 * PITCH);
    const int at = 2 * OWN_BYTES + step % STAGES * STAGE;
    const unsigned int tile = shared + at;
    const float *const of_queries = (const float *)(md_shared + at + 2 * TILE_BYTES);
    const int queries = min(QUERIES - step * TILE, (int)TILE);
    float weights[TILE / 8][4], changes[TILE / 8][4];
    multiply_rows(weights, keys, tile, queries);
    if (again) take_rows(values, shared + OWN_BYTES + warp * 16 * PITCH);
    multiply_rows(changes, values, tile + TILE_BYTES, queries);
    #pragma unroll
    for (int j = 0; j < TILE / 8; j++)
      #pragma unroll
      for (int e = 0; e < 4; e++) {
        const int column = j * 8 + (lane & 3) * 2 + (e & 1);
        weights[j][e] = two_to(md_fma(weights[j][e], $SCALE$f, -of_queries[column]));
        changes[j][e] = weights[j][e] * (changes[j][e] - of_queries[TILE + column]);
      }
    replace_behind(weights, queries, 0.0f);
    replace_behind(changes, queries, 0.0f);
    add_rows(of_values, weights, tile + TILE_BYTES, queries);
    add_rows(of_keys, changes, tile, queries);
  }
  if (there <= 0) return;
  const int first = m0 + warp * 16;
  unsigned char *const own = md_shared + warp * 16 * PITCH;
  write_rows(dk + first * $STEP_DK$ll, $STEP_DK$ll, of_keys, $FACTOR$f, $FACTOR$f, own, there);
  write_rows(dv + first * $STEP_DV$ll, $STEP_DV$ll, of_values, 1.0f, 1.0f, own, there);
}
}  // namespace attention_$NAME$
