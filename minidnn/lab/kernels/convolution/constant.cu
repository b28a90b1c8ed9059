// Filters in constant memory.
//
// All threads of a warp want the same weight at the same time. Constant memory has a cache of its
// own that gives one word to all of them, and leaves the load units to the image. It holds 64 KiB.
//
// Expect: Half the requests to L1; where filters fit at all.
__constant__ float weights[16384];

extern "C" __global__ void constant(const float *x, float *y, int channels, int height, int width,
                                    int filters, int window_height, int window_width,
                                    int out_height, int out_width, int stride, int padding,
                                    int dilation) {
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
        sum = fmaf(x[from], weights[weight], sum);
      }
  y[(image * filters + filter) * out_height * out_width + position] = sum;
}
