// A depthwise convolution of planes, or the gradient of its image, which gathers the same way: a
// thread makes ROWS x COLUMNS numbers of one plane from TALL x WIDE of another.  Neighbours make
// neighbours, through all rows, planes and images, and share what they read in the first cache.
extern "C" __global__ void __launch_bounds__($THREADS$, $BLOCKS$) $NAME$($PARAMETERS$) {
  enum { ROWS = $ROWS$, COLUMNS = $COLUMNS$, TALL = $TALL$, WIDE = $WIDE$, KR = $KR$, KC = $KC$ };
  enum { SR = $SR$, SC = $SC$, DR = $DR$, DC = $DC$, BACK = $BACK$ };
  enum { FIRST_ROW = $FIRST_ROW$, FIRST_COLUMN = $FIRST_COLUMN$ };
  const unsigned int unit = blockIdx.x * $THREADS$u + threadIdx.x;
  if (unit >= (unsigned int)P_units) return;
  const unsigned int line_of = unit / (unsigned int)P_across;
  const int across = (int)(unit - line_of * (unsigned int)P_across);
  const unsigned int plane = line_of / (unsigned int)P_down;
  const int down = (int)(line_of - plane * (unsigned int)P_down);
  const int n = (int)(plane / (unsigned int)P_channels), k = (int)(plane % (unsigned int)P_channels);
  const int row = down * ROWS, column = across * COLUMNS;
  const int top = down * $STEP_DOWN$ - (int)P_top, left = across * $STEP_ACROSS$ - (int)P_left;

  float filter[KR * KC];
  #pragma unroll
  for (int i = 0; i < KR * KC; i++) filter[i] = w[k * (KR * KC) + i];
  float sum[COLUMNS][ROWS];
  #pragma unroll
  for (int i = 0; i < ROWS * COLUMNS; i++) sum[i / ROWS][i % ROWS] = 0.0f;
  const float *line = x + n * P_image + k * P_channel + top * P_row + left;
  #pragma unroll
  for (int i = 0; i < TALL; i++, line += P_row) {
    const bool in_row = (unsigned int)(top + i) < (unsigned int)P_height;
    float seen[WIDE];
    #pragma unroll
    for (int j = 0; j < WIDE; j++)
      seen[j] = in_row && (unsigned int)(left + j) < (unsigned int)P_width ? line[j] : 0.0f;
    #pragma unroll
    for (int a = 0; a < ROWS; a++) {
      // Which row of the filter leads from this row to that: a number of dilations, if any.
      const int away = BACK ? FIRST_ROW + a - i * SR : i - a * SR, r = away / DR;
      if (away < 0 || away % DR != 0 || r >= KR) continue;
      #pragma unroll
      for (int b = 0; b < COLUMNS; b++)
        #pragma unroll
        for (int j = 0; j < WIDE; j++) {
          const int aside = BACK ? FIRST_COLUMN + b - j * SC : j - b * SC, c = aside / DC;
          if (aside < 0 || aside % DC != 0 || c >= KC) continue;
          // Padding is nought, but a gradient has no taps outside: weights may be infinite.
          if (!BACK || (in_row && (unsigned int)(left + j) < (unsigned int)P_width))
            sum[b][a] = md_fma(filter[r * KC + c], seen[j], sum[b][a]);
        }
    }
  }
$RESULTS$
}
