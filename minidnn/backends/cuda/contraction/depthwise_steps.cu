// The gradient of a depthwise convolution that steps over pixels, for its image.  A thread makes the
// pixels of one step, one after the other, of $LANES$ channels: each has taps of its own.
extern "C" __global__ void __launch_bounds__(256) $NAME$(
    const $T$ *__restrict__ w, const $T$ *__restrict__ dy, $T$ *dx, const long long P_count,
    const long long P_channels, const long long P_across, const long long P_down,
    const long long P_height, const long long P_width, const long long P_image,
    const long long P_row, const long long P_pixel, const long long P_rows,
    const long long P_columns, const long long P_dy_image, const long long P_dy_row,
    const long long P_dy_pixel) {
  enum { L = $LANES$, TAPS = $TAPS$ };
  MD_SHARED;
  float *const filter = (float *)md_shared;  // tap by tap
  const int channels = (int)P_channels, packs = channels / L;
  for (int i = threadIdx.x; i < channels * TAPS; i += 256)
    filter[i % TAPS * channels + i / TAPS] = md_value(w[i]);
  __syncthreads();
  const unsigned int count = (unsigned int)P_count, step = gridDim.x * 256;
  for (unsigned int t = blockIdx.x * 256 + threadIdx.x; t < count; t += step) {
    const int c = (int)(t % packs) * L;
    const unsigned int at = t / packs, line = at / (unsigned int)P_across;
    const int column = (int)(at % (unsigned int)P_across), row = (int)(line % (unsigned int)P_down);
    const long long n = line / (unsigned int)P_down;
    const $T$ *const from = dy + n * P_dy_image + c;
    $T$ *const to = dx + n * P_image + c;
    const float *const weight = filter + c;
$GRADIENTS$
$PIXELS$
  }
}
