// One thread a number of the image.
//
// The gradient of a number of the image is the sum over all products that it took part in: for each
// filter and each number of its window, where a position of the result began there, that position's
// gradient times the weight. Nobody else writes the sum, so that nothing is added in memory.
//
// Expect: As slow as the naive convolution, for the same reason: two reads a product. With stride 2
// three of four windows have no position there, and a warp's lanes disagree which.
extern "C" __global__ void naive(const float *g, const float *w, float *y, int channels, int height,
                                 int width, int filters, int window_height, int window_width,
                                 int out_height, int out_width, int stride, int padding,
                                 int dilation) {
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  const int channel = blockIdx.y, image = blockIdx.z;
  if (place >= height * width) return;
  const int row = place / width + padding, column = place % width + padding;
  float sum = 0.0f;
  for (int filter = 0; filter < filters; filter++)
    for (int i = 0; i < window_height; i++)
      for (int j = 0; j < window_width; j++) {
        const int r = row - i * dilation, c = column - j * dilation;
        if (r < 0 || c < 0 || r % stride || c % stride) continue;
        if (r / stride >= out_height || c / stride >= out_width) continue;
        const int plane = image * filters + filter;
        const int from = (plane * out_height + r / stride) * out_width + c / stride;
        const int weight = ((filter * channels + channel) * window_height + i) * window_width + j;
        sum = fmaf(g[from], w[weight], sum);
      }
  y[(image * channels + channel) * (height * width) + place] = sum;
}
