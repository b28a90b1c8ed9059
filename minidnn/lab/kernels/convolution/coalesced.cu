// Neighbouring threads, neighbouring addresses.
//
// Positions of the plane are numbered in the order in which they lie in memory, so that a warp's 32
// outputs are neighbours whatever the width of the plane; images become blocks, too. blockIdx.y is
// the filter, blockIdx.z the image.
//
// Expect: Fewer sectors for each of a warp's accesses, and no idle threads at the edges of rows.
// More blocks, so that small planes fill the GPU.
extern "C" __global__ void coalesced(const float *x, const float *w, float *y, int channels,
                                     int height, int width, int filters, int window_height,
                                     int window_width, int out_height, int out_width, int stride,
                                     int padding, int dilation) {
  const int position = blockIdx.x * blockDim.x + threadIdx.x;
  const int filter = blockIdx.y, image = blockIdx.z;
  if (position >= out_height * out_width) return;
  const int row = position / out_width, column = position % out_width;
  float sum = 0.0f;
  for (int channel = 0; channel < channels; channel++)
    for (int i = 0; i < window_height; i++)
      for (int j = 0; j < window_width; j++) {
        const int r = row * stride - padding + i * dilation;
        const int c = column * stride - padding + j * dilation;
        if (r < 0 || r >= height || c < 0 || c >= width) continue;
        const int from = ((image * channels + channel) * height + r) * width + c;
        const int weight = ((filter * channels + channel) * window_height + i) * window_width + j;
        sum = fmaf(x[from], w[weight], sum);
      }
  y[(image * filters + filter) * out_height * out_width + position] = sum;
}
