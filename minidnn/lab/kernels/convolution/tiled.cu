// A tile with its halo in shared memory.
//
// Windows of neighbouring outputs overlap. A block copies what all its outputs need of a channel
// once to shared memory, waits, and reads it from there; comparisons with the image's edges are
// made once for each number, not for each product. Tiles of the plane follow each other in
// blockIdx.x.
//
// Expect: Reads from global memory fall by about the size of the window. Each product still reads
// shared memory, so that the load units remain the limit.
extern "C" __global__ void tiled(const float *x, const float *w, float *y, int channels, int height,
                                 int width, int filters, int window_height, int window_width,
                                 int out_height, int out_width, int stride, int padding,
                                 int dilation) {
  extern __shared__ float tile[];
  const int tile_height = (blockDim.y - 1) * stride + (window_height - 1) * dilation + 1;
  const int tile_width = (blockDim.x - 1) * stride + (window_width - 1) * dilation + 1;
  const int across = (out_width + blockDim.x - 1) / blockDim.x;
  const int top = blockIdx.x / across * blockDim.y, left = blockIdx.x % across * blockDim.x;
  const int row = top + threadIdx.y, column = left + threadIdx.x;
  const int filter = blockIdx.y, image = blockIdx.z;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  float sum = 0.0f;
  for (int channel = 0; channel < channels; channel++) {
    for (int at = thread; at < tile_height * tile_width; at += threads) {
      const int r = top * stride - padding + at / tile_width;
      const int c = left * stride - padding + at % tile_width;
      const bool inside = r >= 0 && r < height && c >= 0 && c < width;
      tile[at] = inside ? x[((image * channels + channel) * height + r) * width + c] : 0.0f;
    }
    __syncthreads();
    for (int i = 0; i < window_height; i++)
      for (int j = 0; j < window_width; j++) {
        const int r = threadIdx.y * stride + i * dilation;
        const int c = threadIdx.x * stride + j * dilation;
        const int weight = ((filter * channels + channel) * window_height + i) * window_width + j;
        sum = fmaf(tile[r * tile_width + c], w[weight], sum);
      }
    __syncthreads();
  }
  if (row < out_height && column < out_width)
    y[((image * filters + filter) * out_height + row) * out_width + column] = sum;
}
