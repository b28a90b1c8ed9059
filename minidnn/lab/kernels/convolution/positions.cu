// A register tile: filters by positions.
//
// A thread computes GROUP filters at POSITIONS positions: each number of the tile serves all its
// filters, and each weight all its positions. The positions are BLOCK_X apart, so that threads of a
// warp read neighbouring words.
//
// Expect: With 8 by 4, twelve reads of shared memory serve 32 multiply-adds instead of nine serving
// eight. Fewer and larger blocks: small planes may leave multiprocessors idle.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    positions(const float *x, const float *w, float *y, int channels, int height, int width,
              int filters, int out_height, int out_width, int padding) {
  constexpr int ACROSS = BLOCK_X * POSITIONS;  // outputs of a block
  constexpr int TILE_HEIGHT = (BLOCK_Y - 1) * STRIDE + (WINDOW_HEIGHT - 1) * DILATION + 1;
  constexpr int TILE_WIDTH = (ACROSS - 1) * STRIDE + (WINDOW_WIDTH - 1) * DILATION + 1;
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH;
  extern __shared__ float tile[];
  float *const weights = tile + TILE_HEIGHT * TILE_WIDTH;
  const int tiles = (out_width + ACROSS - 1) / ACROSS;
  const int top = blockIdx.x / tiles * BLOCK_Y, left = blockIdx.x % tiles * ACROSS;
  const int row = top + threadIdx.y, column = left + threadIdx.x;
  const int first = blockIdx.y * GROUP, image = blockIdx.z;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const float *mine = tile + (threadIdx.y * TILE_WIDTH + threadIdx.x) * STRIDE;
  float sums[GROUP][POSITIONS] = {};
  for (int channel = 0; channel < channels; channel++) {
    for (int at = thread; at < TILE_HEIGHT * TILE_WIDTH; at += BLOCK_X * BLOCK_Y) {
      const int r = top * STRIDE - padding + at / TILE_WIDTH;
      const int c = left * STRIDE - padding + at % TILE_WIDTH;
      const bool inside = r >= 0 && r < height && c >= 0 && c < width;
      tile[at] = inside ? x[((image * channels + channel) * height + r) * width + c] : 0.0f;
    }
    for (int at = thread; at < WINDOW * GROUP; at += BLOCK_X * BLOCK_Y) {
      const int filter = first + at % GROUP;
      const int weight = (filter * channels + channel) * WINDOW + at / GROUP;
      weights[at] = filter < filters ? w[weight] : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WINDOW_HEIGHT; i++)
#pragma unroll
      for (int j = 0; j < WINDOW_WIDTH; j++) {
        float values[POSITIONS];
#pragma unroll
        for (int p = 0; p < POSITIONS; p++)
          values[p] = mine[(i * TILE_WIDTH + j) * DILATION + p * BLOCK_X * STRIDE];
#pragma unroll
        for (int k = 0; k < GROUP; k++) {
          const float weight = weights[(i * WINDOW_WIDTH + j) * GROUP + k];
#pragma unroll
          for (int p = 0; p < POSITIONS; p++) sums[k][p] = fmaf(values[p], weight, sums[k][p]);
        }
      }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < GROUP; k++)
#pragma unroll
    for (int p = 0; p < POSITIONS; p++) {
      const int c = column + p * BLOCK_X;
      if (first + k < filters && row < out_height && c < out_width)
        y[((image * filters + first + k) * out_height + row) * out_width + c] = sums[k][p];
    }
}
