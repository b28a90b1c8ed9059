// The gradient of a depthwise filter, channels last, in parts:
//
//     dw[k][r][t] = sum over pixels p of dy[p][k] * x[s p + d (r, t) - padding][k]
//
// A thread has L channels that lie side by side and one row of the filter: a sum for each of its
// taps.  It takes COLUMNS pixels of a row of dy and the pixels of x that its row of the filter meets
// there, all asked for at once, then those of another unit.  Threads of other rows of the filter
// read the same dy beside it, from the first cache.  Around x lie zeros, by which dy is multiplied, as
// it need not be finite: where all of a row are zeros, once for all taps.
extern "C" __global__ void __launch_bounds__($THREADS$, $BLOCKS$) $NAME$(
    const $T$ *__restrict__ x, const $T$ *__restrict__ dy, float *parts, $PARAMETERS$) {
  typedef $T$ T;
  typedef md_word<$LANES$ * sizeof(T)>::type word;
  enum { L = $LANES$, COLUMNS = $COLUMNS$, SIDE_BY_SIDE = $SIDE_BY_SIDE$ };
  enum { KR = $KR$, KC = $KC$, SR = $SR$, SC = $SC$, DR = $DR$, DC = $DC$ };
  enum { WIDE = (COLUMNS - 1) * SC + (KC - 1) * DC + 1 };
  MD_SHARED;
  float *const shared = (float *)md_shared;
  const int packs = (int)P_packs, thread = (int)threadIdx.x, part = (int)blockIdx.x;
  const int pack = thread % packs, r = thread / packs % KR, side = thread / (packs * KR);
  const int k = ((int)blockIdx.y * packs + pack) * L;
  const int height = (int)P_height, width = (int)P_width, columns = (int)P_columns;
  const unsigned int across = (unsigned int)P_across, rows = (unsigned int)P_rows;
  float sum[KC][L], outside[L];
  #pragma unroll
  for (int j = 0; j < L; j++) {
    outside[j] = 0.0f;
    #pragma unroll
    for (int t = 0; t < KC; t++) sum[t][j] = 0.0f;
  }

  // Units of a block follow each other: rows of x are read again while the first cache has them.
  const unsigned int begin = (unsigned int)part * (unsigned int)P_units;
  const unsigned int past = min(begin + (unsigned int)P_units, (unsigned int)P_all);
  const unsigned int end = k < (int)P_channels ? past : 0u;
  #pragma unroll 1
  for (unsigned int unit = begin + side; unit < end; unit += SIDE_BY_SIDE) {
    const int column = (int)(unit % across) * COLUMNS, row = (int)(unit / across % rows);
    const long long n = unit / (across * rows);
    const int top = row * SR + r * DR - (int)P_top, left = column * SC - (int)P_left;
    const T *const given = dy + n * P_dy_image + row * P_dy_row + column * P_dy_pixel + k;
    md_pack<L, T> seen[WIDE], gradient[COLUMNS];
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      gradient[c].word = word();
      if (column + c < columns) gradient[c].word = *(const word *)(given + c * P_dy_pixel);
    }
    if ((unsigned int)top >= (unsigned int)height) {
      #pragma unroll
      for (int c = 0; c < COLUMNS; c++)
        #pragma unroll
        for (int j = 0; j < L; j++)
          outside[j] = md_fma(md_value(gradient[c].items[j]), 0.0f, outside[j]);
      continue;
    }
    const T *const from = x + n * P_image + top * P_row + left * P_pixel + k;
    #pragma unroll
    for (int c = 0; c < WIDE; c++) {
      seen[c].word = word();
      if ((unsigned int)(left + c) < (unsigned int)width)
        seen[c].word = *(const word *)(from + c * P_pixel);
    }
    #pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
      if (column + c >= columns) continue;  // beyond it an image may be NaN
      #pragma unroll
      for (int t = 0; t < KC; t++)
        #pragma unroll
        for (int j = 0; j < L; j++)
          sum[t][j] = md_fma(md_value(gradient[c].items[j]),
                             md_value(seen[c * SC + t * DC].items[j]), sum[t][j]);
    }
  }

  #pragma unroll
  for (int t = 0; t < KC; t++) {
    __syncthreads();  // the sums of the tap before were read
    #pragma unroll
    for (int j = 0; j < L; j++) shared[thread * L + j] = sum[t][j] += outside[j];
    __syncthreads();
    if (side > 0 || k >= (int)P_channels) continue;
    #pragma unroll
    for (int j = 0; j < L; j++) {
      float total = sum[t][j];
      for (int i = 1; i < SIDE_BY_SIDE; i++) total += shared[(thread + i * KR * packs) * L + j];
      parts[(part * P_channels + k + j) * (KR * KC) + r * KC + t] = total;
    }
  }
}
