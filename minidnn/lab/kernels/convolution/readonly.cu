// Images and filters by the read-only path.
//
// What a kernel only reads may come by a path that keeps no order with writes: __restrict__
// promises that nothing else points there, and const that it is not written. The compiler then
// marks each read as one of what is constant, and may begin it before writes that stand above it.
//
// Expect: The time of the step before: since Volta both paths end in the same L1 cache. Where
// results are written between reads the promise gains more.
extern "C" __global__ void readonly(const float *__restrict__ x, const float *__restrict__ w,
                                    float *__restrict__ y, int channels, int height, int width,
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
        sum = fmaf(x[from], w[weight], sum);
      }
  y[(image * filters + filter) * out_height * out_width + position] = sum;
}
