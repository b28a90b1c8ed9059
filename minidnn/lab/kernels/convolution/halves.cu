// Images, filters and result in float16.
//
// A number of float16 takes two bytes of memory instead of four. It becomes float32 when it is
// copied to shared memory, so that products and sums are as exact as before; the result is rounded
// once.
//
// Expect: Half the bytes of memory and L2, and the same instructions: it gains where memory is the
// limit, which for convolutions of many channels it is not.
extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    halves(const md_half *x, const md_half *w, const float *bias, md_half *y, int channels,
           int height, int width, int filters, int out_height, int out_width, int padding) {
  constexpr int ACROSS = BLOCK_X * POSITIONS;  // outputs of a block
  constexpr int TILE_HEIGHT = (BLOCK_Y - 1) * STRIDE + (WINDOW_HEIGHT - 1) * DILATION + 1;
  constexpr int TILE_WIDTH = (ACROSS - 1) * STRIDE + (WINDOW_WIDTH - 1) * DILATION + 1;
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH;
  extern __shared__ float4 weights[];
  float *const tile = (float *)weights + WINDOW * GROUP;
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
      const int from = ((image * channels + channel) * height + r) * width + c;
      tile[at] = inside ? md_value(x[from]) : 0.0f;
    }
    for (int at = thread; at < WINDOW * GROUP; at += BLOCK_X * BLOCK_Y) {
      const int filter = first + at % GROUP;
      const int weight = (filter * channels + channel) * WINDOW + at / GROUP;
      ((float *)weights)[at] = filter < filters ? md_value(w[weight]) : 0.0f;
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
        for (int k = 0; k < GROUP; k += 4) {
          const float4 four = weights[((i * WINDOW_WIDTH + j) * GROUP + k) / 4];
#pragma unroll
          for (int p = 0; p < POSITIONS; p++) {
            sums[k][p] = fmaf(values[p], four.x, sums[k][p]);
            sums[k + 1][p] = fmaf(values[p], four.y, sums[k + 1][p]);
            sums[k + 2][p] = fmaf(values[p], four.z, sums[k + 2][p]);
            sums[k + 3][p] = fmaf(values[p], four.w, sums[k + 3][p]);
          }
        }
      }
    __syncthreads();
  }
#pragma unroll
  for (int k = 0; k < GROUP; k++)
#pragma unroll
    for (int p = 0; p < POSITIONS; p++) {
      const int c = column + p * BLOCK_X;
      if (first + k < filters && row < out_height && c < out_width) {
        const float sum = sums[k][p] + bias[first + k];
        y[((image * filters + first + k) * out_height + row) * out_width + c] =
            md_as<md_half>(sum < 0.0f ? 0.0f : sum);
      }
    }
}
