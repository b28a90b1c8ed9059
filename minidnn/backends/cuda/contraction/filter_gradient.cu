// The gradient of a filter in exact float32 as a matrix product: filters by pixels of the result's
// gradient, times pixels by taps of channels of the image, which are gathered from planes as they are
// read.
//
// A block adds up BM rows by BN columns over one part of the pixels of all images, from slabs of 16
// pixels in shared memory, while the next slabs are on their way there.  Rows are filters and columns
// are taps, or the other way around if TURNED.
namespace filter_gradient_$NAME$ {
$MULTIPLY$
extern "C" __global__ void __launch_bounds__($THREADS$, 512 / $THREADS$) $NAME$($PARAMETERS$) {
  constexpr int BM = $BM$, BN = $BN$, RM = $RM$, RN = $RN$, TX = BN / RN, TY = BM / RM;
  constexpr int THREADS = TX * TY, STEP = THREADS / 8, STAGES = $STAGES$;
  constexpr int DEEP = 16, LEFT = BM + 4, RIGHT = BN + 4, SLAB = DEEP * (LEFT + RIGHT);
  constexpr bool TURNED = $TURNED$;
  constexpr int FILTERS = TURNED ? BN : BM, TAPS = TURNED ? BM : BN;
  MD_SHARED;
  float *const slabs = (float *)md_shared;
  const int thread = threadIdx.x;
  const int tx = first_column<TX>(thread), ty = first_row<TX>(thread);
  const int filters = (int)P_filters, taps = (int)P_taps, groups = (int)P_groups;
  const int rows = (int)P_rows, columns = (int)P_columns, plane = rows * columns;
  const int m0 = (int)(blockIdx.x % groups) * BM, n0 = (int)(blockIdx.x / groups) * BN;
  const int k0 = TURNED ? n0 : m0, e0 = TURNED ? m0 : n0;
  const int begin = (int)blockIdx.y * (int)P_depth;
  const int end = min(begin + (int)P_depth, (int)P_pixels);

  // How far each tap lies from a pixel's first one, and how many rows and columns.
  uint2 *const entries = (uint2 *)(slabs + STAGES * SLAB);
  for (int i = thread; i < TAPS; i += THREADS) {
    const int window = (int)P_tap_rows * (int)P_tap_columns;
    const int c = (e0 + i) / window, tap = (e0 + i) % window;
    const int down = tap / (int)P_tap_columns * (int)P_tap_down;
    const int across = tap % (int)P_tap_columns * (int)P_tap_across;
    const int away = c * (int)P_channel + down * (int)P_row + across;
    entries[i].x = (unsigned int)away;
    entries[i].y = (unsigned int)(down << 16 | across);
  }

  // Two pixels of each slab are this thread's.
  const int own = thread % 8, first = thread / 8;
  int image[2], row[2], column[2];
  #pragma unroll
  for (int i = 0; i < 2; i++) {
    const int m = begin + own + 8 * i, p = m % plane;
    image[i] = m / plane, row[i] = p / columns, column[i] = p % columns;
  }
  const auto load = [&](int at, float *slab) {
    #pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool some = at + own + 8 * i < end;
      float *const left = slab + (own + 8 * i) * LEFT;
      float *const right = slab + DEEP * LEFT + (own + 8 * i) * RIGHT;
      const float *gradient = dy + image[i] * P_dy_image + row[i] * P_dy_row + column[i];
      gradient += (k0 + first) * P_dy_channel;
      #pragma unroll 2
      for (int r = first; r < FILTERS; r += STEP, gradient += STEP * P_dy_channel)
        md_copy_if<4>(TURNED ? right + (r ^ 1) : left + r, gradient, some && k0 + r < filters);
      const int y_at = row[i] * (int)P_down - (int)P_top;
      const int x_at = column[i] * (int)P_across - (int)P_left;
      const float *const from = x + image[i] * P_image + y_at * P_row + x_at;
      #pragma unroll 2
      for (int r = first; r < TAPS; r += STEP) {
        const uint2 entry = entries[r];
        const bool inside = (unsigned int)(y_at + (int)(entry.y >> 16)) < (unsigned int)P_height &&
                            (unsigned int)(x_at + (int)(entry.y & 65535)) < (unsigned int)P_breadth;
        md_copy_if<4>(TURNED ? left + r : right + (r ^ 1), from + (int)entry.x,
                      inside && some && e0 + r < taps);
      }
      for (column[i] += DEEP; column[i] >= columns; column[i] -= columns)
        if (++row[i] == rows) row[i] = 0, image[i]++;
    }
  };

  float sum[RM][RN];
  #pragma unroll
  for (int i = 0; i < RM * RN; i++) sum[i / RN][i % RN] = 0.0f;
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (begin + i * DEEP < end) load(begin + i * DEEP, slabs + i * SLAB);
    md_copy_commit();
  }
  int slot = 0;
  #pragma unroll 1
  for (int at = begin; at < end; at += DEEP) {
    md_copy_wait_but<STAGES - 2>();
    __syncthreads();
    const int next = at + (STAGES - 1) * DEEP;
    if (next < end) load(next, slabs + (slot == 0 ? STAGES - 1 : slot - 1) * SLAB);
    md_copy_commit();
    const float *const slab = slabs + slot * SLAB;
    multiply<DEEP, TX, TY, LEFT, RIGHT>(sum, slab + ty, slab + DEEP * LEFT + tx);
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  }
  dw += (long long)blockIdx.y * filters * taps;
  #pragma unroll
  for (int i = 0; i < RM; i++)
    #pragma unroll
    for (int j = 0; j < RN; j++) {
      const int m = m0 + i / 4 * TY * 4 + ty + i % 4, n = n0 + j / 4 * TX * 4 + tx + j % 4;
      const int k = TURNED ? n : m, e = TURNED ? m : n;
      if (k < filters && e < taps) dw[k * (long long)taps + e] = sum[i][j];
    }
}
}  // namespace filter_gradient_$NAME$
