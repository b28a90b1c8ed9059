// One thread an output.
//
// A thread computes one position of one filter's plane, and loops over images, channels and window.
// Nothing is kept: each product reads its two factors from memory. Blocks of (x, y) threads tile
// the plane; blockIdx.z is the filter.
//
// Expect: Two reads a multiply-add keep the load units busy, not the arithmetic: expect a few
// percent of the peak. Narrow blocks make a warp read pieces of several rows.
extern "C" __global__ void naive(const float *x, const float *w, float *y, int batch, int channels,
                                 int height, int width, int filters, int window_height,
                                 int window_width, int out_height, int out_width) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int filter = blockIdx.z;
  if (row >= out_height || column >= out_width) return;
  for (int image = 0; image < batch; image++) {
    float sum = 0.0f;
    for (int channel = 0; channel < channels; channel++)
      for (int i = 0; i < window_height; i++)
        for (int j = 0; j < window_width; j++) {
          const int from = ((image * channels + channel) * height + row + i) * width + column + j;
          const int weight = ((filter * channels + channel) * window_height + i) * window_width + j;
          sum = fmaf(x[from], w[weight], sum);
        }
    y[((image * filters + filter) * out_height + row) * out_width + column] = sum;
  }
}
