// Sums of a depthwise filter's gradient: a block adds up the products of one channel over some of
// the units of all images, ROWS rows of a column each.  A thread has a sum for each tap.
extern "C" __global__ void __launch_bounds__($THREADS$, $BLOCKS$) $NAME$(
    const float *__restrict__ x, const float *__restrict__ dy, float *parts, $PARAMETERS$) {
  enum { THREADS = $THREADS$, ROWS = $ROWS$, TALL = $TALL$ };
  enum { KR = $KR$, KC = $KC$, SR = $SR$, DR = $DR$, DC = $DC$ };
  MD_SHARED;
  float *const shared = (float *)md_shared;
  const int thread = (int)threadIdx.x, k = (int)blockIdx.x, part = (int)blockIdx.y;
  const int begin = part * (int)P_units, end = min(begin + (int)P_units, (int)P_all);
  float sum[KR * KC];
  #pragma unroll
  for (int i = 0; i < KR * KC; i++) sum[i] = 0.0f;
  #pragma unroll 1
  for (int unit = begin + thread; unit < end; unit += THREADS) {
    const unsigned int line_of = (unsigned int)unit / (unsigned int)P_across;
    const int column = unit - (int)line_of * (int)P_across;
    const int n = (int)(line_of / (unsigned int)P_down), down = (int)(line_of % (unsigned int)P_down);
    const int row = down * ROWS;
    const int top = row * SR - (int)P_top, left = column * $SC$ - (int)P_left;
    const float *from = dy + n * P_dy_image + k * P_dy_channel + row * P_dy_row + column;
    float given[ROWS];
    #pragma unroll
    for (int a = 0; a < ROWS; a++, from += P_dy_row)
      given[a] = row + a < (int)P_rows ? *from : 0.0f;
    const float *line = x + n * P_image + k * P_channel + top * P_row + left;
    #pragma unroll
    for (int i = 0; i < TALL; i++, line += P_row) {
      const bool in_row = (unsigned int)(top + i) < (unsigned int)P_height;
      float seen[KC];
      #pragma unroll
      for (int j = 0; j < KC; j++)
        seen[j] =
            in_row && (unsigned int)(left + j * DC) < (unsigned int)P_width ? line[j * DC] : 0.0f;
      #pragma unroll
      for (int a = 0; a < ROWS; a++) {
        // Which row of the filter leads from this row to that: a number of dilations, if any.
        const int away = i - a * SR, r = away / DR;
        if (away < 0 || away % DR != 0 || r >= KR) continue;
        if (row + a < (int)P_rows)  // beyond it an image may be NaN
          #pragma unroll
          for (int j = 0; j < KC; j++)
            sum[r * KC + j] = md_fma(given[a], seen[j], sum[r * KC + j]);
      }
    }
  }
  #pragma unroll
  for (int i = 0; i < KR * KC; i++) {
    #pragma unroll
    for (int by = 16; by > 0; by /= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], by);
    if (thread % 32 == 0) shared[thread / 32 * (KR * KC) + i] = sum[i];
  }
  __syncthreads();
  if (thread >= KR * KC) return;
  float total = shared[thread];
  #pragma unroll
  for (int i = 1; i < THREADS / 32; i++) total += shared[i * (KR * KC) + thread];
  parts[(part * P_channels + k) * (KR * KC) + thread] = total;
}
