// Compiled for one window.
//
// Window, stride, dilation and block stand in the text as numbers. The compiler writes loops over
// the window out, and addresses in the tile become constants of the instructions.
//
// Expect: Most instructions that were not multiply-adds or reads disappear; more registers.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    unrolled(const float *x, const float *w, float *y, int channels, int height, int width,
             int filters, int out_height, int out_width, int padding) {
  constexpr int TILE_HEIGHT = (BLOCK_Y - 1) * STRIDE + (WINDOW_HEIGHT - 1) * DILATION + 1;
  constexpr int TILE_WIDTH = (BLOCK_X - 1) * STRIDE + (WINDOW_WIDTH - 1) * DILATION + 1;
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH;
  extern __shared__ float tile[];
  const int across = (out_width + BLOCK_X - 1) / BLOCK_X;
  const int top = blockIdx.x / across * BLOCK_Y, left = blockIdx.x % across * BLOCK_X;
  const int row = top + threadIdx.y, column = left + threadIdx.x;
  const int filter = blockIdx.y, image = blockIdx.z;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const float *mine = tile + (threadIdx.y * TILE_WIDTH + threadIdx.x) * STRIDE;
  float sum = 0.0f;
  for (int channel = 0; channel < channels; channel++) {
    for (int at = thread; at < TILE_HEIGHT * TILE_WIDTH; at += BLOCK_X * BLOCK_Y) {
      const int r = top * STRIDE - padding + at / TILE_WIDTH;
      const int c = left * STRIDE - padding + at % TILE_WIDTH;
      const bool inside = r >= 0 && r < height && c >= 0 && c < width;
      tile[at] = inside ? x[((image * channels + channel) * height + r) * width + c] : 0.0f;
    }
    __syncthreads();
    const float *weights = w + (filter * channels + channel) * WINDOW;
#pragma unroll
    for (int i = 0; i < WINDOW_HEIGHT; i++)
#pragma unroll
      for (int j = 0; j < WINDOW_WIDTH; j++)
        sum = fmaf(mine[(i * TILE_WIDTH + j) * DILATION], weights[i * WINDOW_WIDTH + j], sum);
    __syncthreads();
  }
  if (row < out_height && column < out_width)
    y[((image * filters + filter) * out_height + row) * out_width + column] = sum;
}
