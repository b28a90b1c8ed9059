// A convolution of bytes without tensor cores, of any groups and channels.  Printed by dp4a.py,
// which says what the names in dollars stand for.
//
// A thread computes LANES neighbouring filters of a pixel, from words of STEP bytes.
namespace quads_$NAME$ {
typedef $T$ T;
enum { LANES = $LANES$, STEP = $STEP$ };

// The tests' emulator has a function of the same name.
#ifdef __CUDACC__
// Four products of bytes, added to a sum.
template <class> MD_FUNCTION int quad(unsigned int a, unsigned int b, int sum) {
  int y;
  asm("dp4a.$PTX$.s32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(sum));
  return y;
}
#endif

extern "C" __global__ void __launch_bounds__($THREADS$) $NAME$($PARAMETERS$) {
$HEADER$
  const long long t = (long long)blockIdx.x * $THREADS$ + threadIdx.x;
  const int across = (int)P_filters / LANES;
  if (t >= P_pixels * across) return;
  const int n = (int)(t % across) * LANES;
  const long long m = t / across, image = m / P_plane;
  const int p = (int)(m - image * P_plane);
  const int top = p / (int)P_columns * (int)P_SY - (int)P_PY;
  const int left = p % (int)P_columns * (int)P_SX - (int)P_PX;
  int sums[LANES];
  #pragma unroll
  for (int j = 0; j < LANES; j++) sums[j] = starts[n + j];
  x += image * P_image + n / (int)P_each * (int)P_channels;
  for (int r = 0; r < (int)P_R; r++)
    for (int s = 0; s < (int)P_S; s++) {
      const int row = top + r * (int)P_DY, column = left + s * (int)P_DX;
      const bool inside = (unsigned)row < (unsigned)P_H && (unsigned)column < (unsigned)P_W;
      const T *const from = x + row * P_row + column * P_pixel;
$PRODUCTS$
    }
$RESULTS$
}
}  // namespace quads_$NAME$
