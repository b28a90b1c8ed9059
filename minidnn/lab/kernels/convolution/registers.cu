// Several filters a thread.
//
// A thread keeps the sums of GROUP filters in registers, and uses each number that it reads of the
// tile for all of them. Their weights are copied to shared memory as well, where one read serves a
// warp. blockIdx.y counts groups of filters.
//
// Expect: The tile is copied and read GROUP times less often; registers grow, occupancy may fall.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    registers(const float *x, const float *w, float *y, int channels, int height, int width,
              int filters, int out_height, int out_width, int padding) {
  constexpr int TILE_HEIGHT = (BLOCK_Y - 1) * STRIDE + (WINDOW_HEIGHT - 1) * DILATION + 1;
  constexpr int TILE_WIDTH = (BLOCK_X - 1) * STRIDE + (WINDOW_WIDTH - 1) * DILATION + 1;
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH;
  extern __shared__ float tile[];
  float *const weights = tile + TILE_HEIGHT * TILE_WIDTH;
  const int across = (out_width + BLOCK_X - 1) / BLOCK_X;
  const int top = blockIdx.x / across * BLOCK_Y, left = blockIdx.x % across * BLOCK_X;
  const int row = top + threadIdx.y, column = left + threadIdx.x;
  const int first = blockIdx.y * GROUP, image = blockIdx.z;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const float *mine = tile + (threadIdx.y * TILE_WIDTH + threadIdx.x) * STRIDE;
  float sums[GROUP] = {};
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
        const float value = mine[(i * TILE_WIDTH + j) * DILATION];
#pragma unroll
        for (int k = 0; k < GROUP; k++)
          sums[k] = fmaf(value, weights[(i * WINDOW_WIDTH + j) * GROUP + k], sums[k]);
      }
    __syncthreads();
  }
  if (row >= out_height || column >= out_width) return;
#pragma unroll
  for (int k = 0; k < GROUP; k++)
    if (first + k < filters)
      y[((image * filters + first + k) * out_height + row) * out_width + column] = sums[k];
}
