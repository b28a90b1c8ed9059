// The images unfolded, then a matrix product.
//
// Filters are rows, positions of all images are columns, and channels with their windows are what
// is summed. A kernel of its own writes the second factor: each number of an image once for each
// product that it takes part in. What follows is a matrix product as on its ladder: eight by eight
// sums a thread, two tiles in turn, a patch of the tile for each warp. Small planes share a block.
//
// Expect: Half a read of shared memory for 16 multiply-adds, whatever the window. Windows of 3x3
// are written and read as nine times the image, which costs more than it gains where channels are
// few.
extern "C" __global__ void unfold(const float *x, float *matrix, int out_height, int out_width) {
  const int position = blockIdx.x * (BLOCK_X * BLOCK_Y) + threadIdx.x, k = blockIdx.y;
  if (position >= BATCH * out_height * out_width) return;
  const int image = position / (out_height * out_width), at = position % (out_height * out_width);
  const int channel = k / (WINDOW_HEIGHT * WINDOW_WIDTH);
  const int tap = k % (WINDOW_HEIGHT * WINDOW_WIDTH);
  const int row = at / out_width * STRIDE - PADDING + tap / WINDOW_WIDTH * DILATION;
  const int column = at % out_width * STRIDE - PADDING + tap % WINDOW_WIDTH * DILATION;
  const bool inside = row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
  const int from = ((image * CHANNELS + channel) * HEIGHT + row) * WIDTH + column;
  matrix[k * (BATCH * out_height * out_width) + position] = inside ? x[from] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y, RESIDENT)
    columns(const float *matrix, const float *w, float *y) {
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH, DEPTH = CHANNELS * WINDOW;
  constexpr int LOWER = HEIGHT + 2 * PADDING - (WINDOW_HEIGHT - 1) * DILATION - 1;
  constexpr int RIGHT = WIDTH + 2 * PADDING - (WINDOW_WIDTH - 1) * DILATION - 1;
  constexpr int OUT_HEIGHT = LOWER / STRIDE + 1, OUT_WIDTH = RIGHT / STRIDE + 1;
  constexpr int PLANE = OUT_HEIGHT * OUT_WIDTH, POSITIONS = BATCH * PLANE;
  constexpr int THREADS = BLOCK_X * BLOCK_Y, ROWS = BLOCK_Y * 8, COLUMNS = BLOCK_X * 8;
  constexpr int APART = THREADS / TILE_DEPTH, TURNS_W = (ROWS + APART - 1) / APART;
  constexpr int TURNS_X = TILE_DEPTH / (BLOCK_Y / 8);  // of the threads that share a column
  __shared__ float4 tile_w[2][TILE_DEPTH][ROWS / 4 + 1], tile_x[2][TILE_DEPTH][COLUMNS / 4];
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int i = warp / (BLOCK_X / 4) * 8 + lane / 4, j = warp % (BLOCK_X / 4) * 4 + lane % 4;
  const int top = blockIdx.y * ROWS, left = blockIdx.x * COLUMNS;
  const int own_row = thread / TILE_DEPTH, own_k = thread % TILE_DEPTH;  // of the weights' tile
  const auto weights = w + (top + own_row) * DEPTH + own_k;
  const int deep = thread / COLUMNS * TURNS_X, position = left + thread % COLUMNS;
  float next_w[TURNS_W], next_x[TURNS_X];
  const auto fetch = [&](int first) {
#pragma unroll
    for (int turn = 0; turn < TURNS_W; turn++) {
      const int r = own_row + turn * APART;
      const bool inside = r < ROWS && top + r < FILTERS && first + own_k < DEPTH;
      next_w[turn] = inside ? weights[turn * APART * DEPTH + first] : 0.0f;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_X; turn++) {
      const int k = first + deep + turn;
      next_x[turn] = k < DEPTH && position < POSITIONS ? matrix[k * POSITIONS + position] : 0.0f;
    }
  };
  const auto keep = [&](int buffer) {
#pragma unroll
    for (int turn = 0; turn < TURNS_W; turn++) {
      const int r = own_row + turn * APART;
      if (r < ROWS) ((float *)tile_w[buffer][own_k])[r] = next_w[turn];
    }
#pragma unroll
    for (int turn = 0; turn < TURNS_X; turn++)
      ((float *)tile_x[buffer][deep + turn])[thread % COLUMNS] = next_x[turn];
  };
  float sums[8][8] = {};
  fetch(0);
  keep(0);
  __syncthreads();
  for (int first = 0, buffer = 0; first < DEPTH; first += TILE_DEPTH, buffer ^= 1) {
    const bool more = first + TILE_DEPTH < DEPTH;
    if (more) fetch(first + TILE_DEPTH);
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      const float4 down[2] = {tile_w[buffer][k][i], tile_w[buffer][k][i + BLOCK_Y]};
      const float4 right[2] = {tile_x[buffer][k][j], tile_x[buffer][k][j + BLOCK_X]};
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
  for (int c = 0; c < 8; c += 4) {
    const int first = left + (j + c / 4 * BLOCK_X) * 4;
#pragma unroll
    for (int r = 0; r < 8; r++) {
      const int filter = top + (i + r / 4 * BLOCK_Y) * 4 + r % 4;
      if (filter >= FILTERS) continue;
      if (PLANE % 4 == 0) {  // four firsts are of one image, and whole vectors
        const float4 four = {sums[r][c], sums[r][c + 1], sums[r][c + 2], sums[r][c + 3]};
        const int at = (first / PLANE * FILTERS + filter) * PLANE + first % PLANE;
        if (first < POSITIONS) *(float4 *)(y + at) = four;
        continue;
      }
#pragma unroll
      for (int one = 0; one < 4; one++) {
        const int at = ((first + one) / PLANE * FILTERS + filter) * PLANE;
        if (first + one < POSITIONS) y[at + (first + one) % PLANE] = sums[r][c + one];
      }
    }
  }
}
