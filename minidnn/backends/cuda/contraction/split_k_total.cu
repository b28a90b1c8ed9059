// The parts of a convolution's sums added up, always in the same order, and what comes after.  A
// thread makes four pixels of a filter.
extern "C" __global__ void __launch_bounds__(128) $NAME$($PARAMETERS$) {
  const int filters = (int)P_filters, pixels = (int)P_pixels, plane = (int)P_plane;
  const int k = (int)blockIdx.y, m = ((int)blockIdx.x * 128 + (int)threadIdx.x) * 4;
  if (m >= pixels) return;
  const float *part = x + k * P_width + m;
  float a0[4], r[4];
  md_load<4>(a0, part);
  #pragma unroll 4
  for (int i = 1; i < (int)P_parts; i++) {
    part += filters * P_width;
    float more[4];
    md_load<4>(more, part);
    #pragma unroll
    for (int j = 0; j < 4; j++) a0[j] += more[j];
  }
$EPILOGUE$
}
