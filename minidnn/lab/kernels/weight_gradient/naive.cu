// One thread a weight.
//
// The gradient of a weight is the sum over all images and positions: what the window saw there times
// the position's gradient. A thread computes one, and its neighbours those of the same window.
//
// Expect: Very slow: there are as few threads as weights, and each sums as many products as a batch
// has positions, one after the other.
extern "C" __global__ void naive(const float *x, const float *g, float *y, int batch, int channels,
                                 int height, int width, int filters, int window_height,
                                 int window_width, int out_height, int out_width, int stride,
                                 int padding, int dilation) {
  const int weight = blockIdx.x * blockDim.x + threadIdx.x, window = window_height * window_width;
  if (weight >= filters * channels * window) return;
  const int filter = weight / (channels * window), channel = weight / window % channels;
  const int down = weight % window / window_width * dilation - padding;
  const int right = weight % window_width * dilation - padding;
  float sum = 0.0f;
  for (int image = 0; image < batch; image++)
    for (int row = 0; row < out_height; row++)
      for (int column = 0; column < out_width; column++) {
        const int r = row * stride + down, c = column * stride + right;
        if (r < 0 || r >= height || c < 0 || c >= width) continue;
        const int from = ((image * channels + channel) * height + r) * width + c;
        const int of_g = ((image * filters + filter) * out_height + row) * out_width + column;
        sum = fmaf(x[from], g[of_g], sum);
      }
  y[weight] = sum;
}
