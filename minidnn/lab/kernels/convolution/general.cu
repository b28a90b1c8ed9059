// Padding, stride and dilation.
//
// The window's place is computed from stride, padding and dilation, and what lies outside the image
// is skipped.
//
// Expect: Two comparisons and more address arithmetic for each product: slower than before on the
// same shape. With a stride, a warp's reads spread over as many times the bytes.
extern "C" __global__ void general(const float *x, const float *w, float *y, int batch,
                                   int channels, int height, int width, int filters,
                                   int window_height, int window_width, int out_height,
                                   int out_width, int stride, int padding, int dilation) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int filter = blockIdx.z;
  if (row >= out_height || column >= out_width) return;
  for (int image = 0; image < batch; image++) {
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
    y[((image * filters + filter) * out_height + row) * out_width + column] = sum;
  }
}
