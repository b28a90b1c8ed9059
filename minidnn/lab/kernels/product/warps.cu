// A patch of the tile for each warp.
//
// The threads of a warp are eight rows and four columns of the block's, no longer two whole rows:
// together they read eight vectors of one factor and four of the other, not two and sixteen.
//
// Expect: A vector of shared memory serves more lanes, so that each read is one turn of the load
// units: the closest to the peak that a text without tensor cores comes.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y, RESIDENT)
    warps(const float *a, const float *b, float *y, int rows, int columns, int depth) {
  constexpr int TILE_ROWS = BLOCK_Y * 8, TILE_COLUMNS = BLOCK_X * 8, THREADS = BLOCK_X * BLOCK_Y;
  constexpr int DEEP = TILE_DEPTH / 4, ACROSS = TILE_COLUMNS / 4;
  constexpr int TURNS_A = (TILE_ROWS * DEEP + THREADS - 1) / THREADS;
  constexpr int TURNS_B = (TILE_DEPTH * ACROSS + THREADS - 1) / THREADS;
  __shared__ float4 tile_a[2][TILE_DEPTH][TILE_ROWS / 4 + 1], tile_b[2][TILE_DEPTH][ACROSS];
  const float4 zeros = {0.0f, 0.0f, 0.0f, 0.0f};
  const int top = blockIdx.y * TILE_ROWS, left = blockIdx.x * TILE_COLUMNS;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int i = warp / (BLOCK_X / 4) * 8 + lane / 4, j = warp % (BLOCK_X / 4) * 4 + lane % 4;
  float4 next_a[TURNS_A], next_b[TURNS_B];
  const int row = top + thread / DEEP, deep = thread % DEEP * 4, apart = THREADS / DEEP;
  const int own_k = thread / ACROSS, column = left + thread % ACROSS * 4, below = THREADS / ACROSS;
  const float *const from_a = a + row * depth + deep, *const from_b = b + own_k * columns + column;
  const auto fetch = [&](int first) {
#pragma unroll
    for (int turn = 0; turn < TURNS_A; turn++) {
      const bool inside = row + turn * apart < rows && first + deep < depth;
      next_a[turn] = inside ? *(const float4 *)(from_a + turn * apart * depth + first) : zeros;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_B; turn++) {
      const int k = first + turn * below;
      const bool inside = own_k + k < depth && column < columns;
      next_b[turn] = inside ? *(const float4 *)(from_b + k * columns) : zeros;
    }
  };
  const auto keep = [&](int buffer) {
#pragma unroll
    for (int turn = 0; turn < TURNS_A; turn++) {
      const int r = thread / DEEP + turn * apart;
      if (r >= TILE_ROWS) break;
      ((float *)tile_a[buffer][deep])[r] = next_a[turn].x;
      ((float *)tile_a[buffer][deep + 1])[r] = next_a[turn].y;
      ((float *)tile_a[buffer][deep + 2])[r] = next_a[turn].z;
      ((float *)tile_a[buffer][deep + 3])[r] = next_a[turn].w;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_B; turn++) {
      const int k = own_k + turn * below;
      if (k < TILE_DEPTH) tile_b[buffer][k][thread % ACROSS] = next_b[turn];
    }
  };
  float sums[8][8] = {};
  fetch(0);
  keep(0);
  __syncthreads();
  for (int first = 0, buffer = 0; first < depth; first += TILE_DEPTH, buffer ^= 1) {
    const bool more = first + TILE_DEPTH < depth;
    if (more) fetch(first + TILE_DEPTH);
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      const float4 down[2] = {tile_a[buffer][k][i], tile_a[buffer][k][i + BLOCK_Y]};
      const float4 right[2] = {tile_b[buffer][k][j], tile_b[buffer][k][j + BLOCK_X]};
#pragma unroll
      for (int r = 0; r < 8; r++)
#pragma unroll
        for (int c = 0; c < 8; c++)
          sums[r][c] = fmaf(((const float *)down)[r], ((const float *)right)[c], sums[r][c]);
    }
    if (more) keep(buffer ^ 1);
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 8; r++)
#pragma unroll
    for (int c = 0; c < 8; c += 4) {
      const int at = top + (i + r / 4 * BLOCK_Y) * 4 + r % 4;
      const int right = left + (j + c / 4 * BLOCK_X) * 4;
      const float4 four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
      if (at < rows && right < columns) *(float4 *)(y + at * columns + right) = four;
    }
}
