// A convolution whose groups have one input channel:
//
//     y[p][k] = sum over taps t of w[k][t] * x[s p + d t - padding][k / M]
//
// A thread makes ROWS x COLUMNS pixels of L channels that lie side by side, and then others below.
// Rows of the image pass through its registers from top to bottom, each asked for while the one
// above is computed with, converted once and added to all results that it belongs to.  So every
// result is a chain of multiply-adds in the order of its taps, row after row, whatever a thread
// makes.  A block keeps the filters of its channels in shared memory, as floats, first the first
// four channels of all threads' packs, then the others: no two share a bank.
//
// Before sm_90 unrolled rows take more registers than are counted for so many blocks at once.
#if __CUDA_ARCH__ >= 900
#define BLOCKS $BLOCKS$
#else
#define BLOCKS 1
#endif
extern "C" __global__ void __launch_bounds__($THREADS$, BLOCKS) $NAME$($PARAMETERS$) {
  typedef $T$ T;
  constexpr int L = $LANES$, M = $MULTIPLIER$, ROWS = $ROWS$, COLUMNS = $COLUMNS$;
  constexpr int KR = $KR$, KC = $KC$, SR = $SR$, SC = $SC$, DR = $DR$, DC = $DC$;
  constexpr int READ = L < M ? 1 : L / M, PART = L < 4 ? L : 4, TAPS = KR * KC;
  constexpr int TALL = (ROWS - 1) * SR + (KR - 1) * DR + 1, WIDE = (COLUMNS - 1) * SC + (KC - 1) * DC + 1;
  constexpr int STEP = ROWS == 1 ? DR : 1;
  MD_SHARED;
  float *const filters = (float *)md_shared;
  const int packs = (int)P_packs, pitch = packs * L + 4, channels = (int)P_channels;
  const int first = blockIdx.y * packs * L;
  const int own = channels - first < packs * L ? channels - first : packs * L;
  for (int i = threadIdx.x; i < own * TAPS; i += blockDim.x) {
    const int channel = i / TAPS, lane = channel % L;
    filters[i % TAPS * pitch + (lane / PART * packs + channel / L) * PART + lane % PART] =
        md_value(w[(long long)first * TAPS + i]);
  }
  __syncthreads();

  const int pack = threadIdx.x % packs, k = first + pack * L;
  if (k >= channels) return;
  const unsigned int across = (unsigned int)P_across, down = (unsigned int)P_down;
  const int height = (int)P_height, width = (int)P_width, pixel = (int)P_pixel;
  const float *const filter = filters + pack * PART;
  const unsigned int rounds = (unsigned int)P_rounds, strips = (unsigned int)P_strips;
  #pragma unroll 1
  for (unsigned int round = 0; round < rounds; round++) {
    const unsigned int strip = (blockIdx.x * rounds + round) * strips + threadIdx.x / packs;
    if (strip >= (unsigned int)P_count) return;
    const int column = strip % across * COLUMNS, row = strip / across % down * ROWS;
    const long long n = strip / (across * down);
    const int top = row * SR - (int)P_top, left = column * SC - (int)P_left;
    const T *const image = x + n * P_image + k / M + (long long)left * pixel;

    md_pack<READ, T> next[WIDE];
    const auto ask = [&](int r) {
      const bool there = (unsigned int)(top + r) < (unsigned int)height;
      const T *const from = image + (top + r) * P_row;
      #pragma unroll
      for (int c = 0; c < WIDE; c++) {
        next[c].word = typename md_word<READ * sizeof(T)>::type();
        if (there && (unsigned int)(left + c) < (unsigned int)width)
          next[c].word = *(const typename md_word<READ * sizeof(T)>::type *)(from + c * pixel);
      }
    };
    float sum[ROWS][COLUMNS][L];
    #pragma unroll
    for (int o = 0; o < ROWS; o++)
      #pragma unroll
      for (int c = 0; c < COLUMNS; c++)
        #pragma unroll
        for (int j = 0; j < L; j++) sum[o][c][j] = 0.0f;
    ask(0);
    #pragma unroll $UNROLL$
    for (int r = 0; r < TALL; r += STEP) {
      // Filters are read again for each row: kept from row to row they would fill all registers.
      asm volatile("" : : : "memory");
      float in[WIDE][READ];
      #pragma unroll
      for (int c = 0; c < WIDE; c++)
        #pragma unroll
        for (int j = 0; j < READ; j++) in[c][j] = md_value(next[c].items[j]);
      if (r + STEP < TALL) ask(r + STEP);
      #pragma unroll
      for (int o = 0; o < ROWS; o++) {
        const int by = r - o * SR;
        if (by < 0 || by % DR != 0 || by / DR >= KR) continue;
        #pragma unroll
        for (int t = 0; t < KC; t++) {
          float f[L];
          #pragma unroll
          for (int part = 0; part < L / PART; part++) {
            float four[PART];
            md_load<PART>(four, filter + (by / DR * KC + t) * pitch + part * packs * PART);
            #pragma unroll
            for (int j = 0; j < PART; j++) f[part * PART + j] = four[j];
          }
          #pragma unroll
          for (int c = 0; c < COLUMNS; c++)
            #pragma unroll
            for (int j = 0; j < L; j++)
              sum[o][c][j] = md_fma(in[c * SC + t * DC][j / M], f[j], sum[o][c][j]);
        }
      }
      #pragma unroll
      for (int o = 0; o < ROWS; o++) {
        if (r != o * SR + (KR - 1) * DR || row + o >= (int)P_rows) continue;
$VECTORS$
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
          if (column + c >= (int)P_columns) continue;
          const long long m = (n * P_rows + row + o) * P_columns + column + c;
          float a0[L], result[L];
          #pragma unroll
          for (int j = 0; j < L; j++) a0[j] = sum[o][c][j];
$EPILOGUE$
          md_store<L>(y + m * P_y + k, result);
        }
      }
    }
  }
}
