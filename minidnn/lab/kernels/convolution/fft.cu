// A product for each frequency.
//
// What is a sum over a window in space is a product at each frequency. The image is cut in tiles
// that overlap by the window, tiles and filters are transformed by the FFT, a number's row and
// column in registers; for each frequency there is a product of matrices of complex numbers,
// filters by channels times channels by tiles; and what comes of it is transformed back. Tiles are
// real, so that half of the frequencies do.
//
// Expect: The same time for each window that fits a tile: little for large ones. For 3x3 the
// products are a third of what they were, but spectra are written and read, several times the
// image.
constexpr int HALF = SIZE / 2 + 1, FREQUENCIES = SIZE * HALF, ROW = SIZE + 1;
constexpr int TILES = BLOCK_X * BLOCK_Y / SIZE, THREADS = TILES * SIZE;  // of a block
constexpr int SPAN_DOWN = (WINDOW_HEIGHT - 1) * DILATION;
constexpr int SPAN_ACROSS = (WINDOW_WIDTH - 1) * DILATION;
constexpr int OUT_HEIGHT = (HEIGHT + 2 * PADDING - SPAN_DOWN - 1) / STRIDE + 1;
constexpr int OUT_WIDTH = (WIDTH + 2 * PADDING - SPAN_ACROSS - 1) / STRIDE + 1;
constexpr int OWN_DOWN = (SIZE - SPAN_DOWN - 1) / STRIDE + 1;  // outputs of a tile
constexpr int OWN_ACROSS = (SIZE - SPAN_ACROSS - 1) / STRIDE + 1;
constexpr int DOWN = (OUT_HEIGHT + OWN_DOWN - 1) / OWN_DOWN;
constexpr int ACROSS = (OUT_WIDTH + OWN_ACROSS - 1) / OWN_ACROSS, PLACES = BATCH * DOWN * ACROSS;

// The cosine of k / 16 of a half turn; k is known when this is compiled.
MD_FUNCTION float cosine(int k) {
  constexpr float ONE = 0.980785280f, TWO = 0.923879533f, THREE = 0.831469612f;
  constexpr float FOUR = 0.707106781f, FIVE = 0.555570233f, SIX = 0.382683432f;
  constexpr float SEVEN = 0.195090322f;
  const int j = k > 8 ? 16 - k : k;
  const float low = j == 0 ? 1.0f : j == 1 ? ONE : j == 2 ? TWO : j == 3 ? THREE : FOUR;
  const float high = j == 5 ? FIVE : j == 6 ? SIX : j == 7 ? SEVEN : 0.0f;
  const float value = j < 5 ? low : high;
  return k > 8 ? -value : value;
}

// The discrete Fourier transform, in place.
MD_FUNCTION void transform(float2 (&x)[SIZE]) {
  constexpr int BITS = SIZE == 8 ? 3 : SIZE == 16 ? 4 : 5;
#pragma unroll
  for (int i = 0; i < SIZE; i++) {
    int j = 0;
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) j |= (i >> bit & 1) << (BITS - 1 - bit);
    if (i < j) {
      const float2 kept = x[i];
      x[i] = x[j];
      x[j] = kept;
    }
  }
#pragma unroll
  for (int level = 0; level < BITS; level++)
#pragma unroll
    for (int pair = 0; pair < SIZE / 2; pair++) {
      const int half = 1 << level, i = pair % half, first = pair / half * 2 * half + i;
      const int turn = i * 16 / half;
      const float c = cosine(turn), s = cosine(turn < 8 ? 8 - turn : turn - 8);
      const float2 low = x[first], high = x[first + half];
      const float real = fmaf(c, high.x, s * high.y), imaginary = fmaf(c, high.y, -s * high.x);
      x[first] = {low.x + real, low.y + imaginary};
      x[first + half] = {low.x - real, low.y - imaginary};
    }
}

// Rows, then columns, of the block's tiles of real numbers; half of the columns do.
MD_FUNCTION void transform_tiles(float2 *tiles, int thread) {
  float2 line[SIZE];
  float2 *const mine = tiles + thread / SIZE * SIZE * ROW;
  const int own = thread % SIZE;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < SIZE; i++) line[i] = mine[own * ROW + i];
  transform(line);
#pragma unroll
  for (int i = 0; i < HALF; i++) mine[own * ROW + i] = line[i];
  __syncthreads();
  if (own < HALF) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) line[i] = mine[i * ROW + own];
    transform(line);
#pragma unroll
    for (int i = 0; i < SIZE; i++) mine[i * ROW + own] = line[i];
  }
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) images(const float *x, float2 *spectra_x) {
  extern __shared__ float2 tiles[];
  const int first = blockIdx.x * TILES, channel = blockIdx.y;
  for (int at = threadIdx.x; at < TILES * SIZE * SIZE; at += THREADS) {
    const int place = first + at / (SIZE * SIZE), r = at / SIZE % SIZE, c = at % SIZE;
    const int row = place / ACROSS % DOWN * OWN_DOWN * STRIDE - PADDING + r;
    const int column = place % ACROSS * OWN_ACROSS * STRIDE - PADDING + c;
    const bool inside =
        place < PLACES && row >= 0 && row < HEIGHT && column >= 0 && column < WIDTH;
    const int plane = place / (DOWN * ACROSS) * CHANNELS + channel;
    const int from = (plane * HEIGHT + row) * WIDTH + column;
    tiles[at / SIZE * ROW + c] = {inside ? x[from] : 0.0f, 0.0f};
  }
  transform_tiles(tiles, threadIdx.x);
  for (int at = threadIdx.x; at < TILES * FREQUENCIES; at += THREADS) {
    const int tile = at % TILES, frequency = at / TILES;
    if (first + tile < PLACES)
      spectra_x[(frequency * CHANNELS + channel) * PLACES + first + tile] =
          tiles[(tile * SIZE + frequency / HALF) * ROW + frequency % HALF];
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) filters(const float *w, float2 *spectra_w) {
  extern __shared__ float2 tiles[];
  const int first = blockIdx.x * TILES;
  for (int at = threadIdx.x; at < TILES * SIZE * SIZE; at += THREADS) {
    const int pair = first + at / (SIZE * SIZE), r = at / SIZE % SIZE, c = at % SIZE;
    const int filter = pair % FILTERS, channel = pair / FILTERS;
    const bool inside = channel < CHANNELS && r % DILATION == 0 && r <= SPAN_DOWN &&
                        c % DILATION == 0 && c <= SPAN_ACROSS;
    const int from = ((filter * CHANNELS + channel) * WINDOW_HEIGHT + r / DILATION) * WINDOW_WIDTH;
    tiles[at / SIZE * ROW + c] = {inside ? w[from + c / DILATION] : 0.0f, 0.0f};
  }
  transform_tiles(tiles, threadIdx.x);
  for (int at = threadIdx.x; at < TILES * FREQUENCIES; at += THREADS) {
    const int pair = first + at % TILES, frequency = at / TILES;
    if (pair < CHANNELS * FILTERS)
      spectra_w[frequency * (CHANNELS * FILTERS) + pair] =
          tiles[(at % TILES * SIZE + frequency / HALF) * ROW + frequency % HALF];
  }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    products(const float2 *spectra_w, const float2 *spectra_x, float2 *spectra_y) {
  constexpr int ROWS = BLOCK_Y * 4, COLUMNS = BLOCK_X * 4;
  __shared__ float2 of_w[TILE_DEPTH][ROWS], of_x[TILE_DEPTH][COLUMNS];
  const int left = blockIdx.x * COLUMNS, top = blockIdx.y * ROWS, frequency = blockIdx.z;
  const int thread = threadIdx.y * BLOCK_X + threadIdx.x;
  const float2 zero = {0.0f, 0.0f};
  float2 sums[4][4] = {};
  for (int first = 0; first < CHANNELS; first += TILE_DEPTH) {
    for (int at = thread; at < TILE_DEPTH * ROWS; at += BLOCK_X * BLOCK_Y) {
      const int k = first + at / ROWS, filter = top + at % ROWS;
      const bool inside = k < CHANNELS && filter < FILTERS;
      const int from = (frequency * CHANNELS + k) * FILTERS + filter;
      of_w[at / ROWS][at % ROWS] = inside ? spectra_w[from] : zero;
    }
    for (int at = thread; at < TILE_DEPTH * COLUMNS; at += BLOCK_X * BLOCK_Y) {
      const int k = first + at / COLUMNS, place = left + at % COLUMNS;
      const bool inside = k < CHANNELS && place < PLACES;
      const int from = (frequency * CHANNELS + k) * PLACES + place;
      of_x[at / COLUMNS][at % COLUMNS] = inside ? spectra_x[from] : zero;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < TILE_DEPTH; k++) {
      float2 w[4], x[4];
#pragma unroll
      for (int r = 0; r < 4; r++) w[r] = of_w[k][threadIdx.y + r * BLOCK_Y];
#pragma unroll
      for (int c = 0; c < 4; c++) x[c] = of_x[k][threadIdx.x + c * BLOCK_X];
#pragma unroll
      for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {  // the filter's conjugate: windows are not turned around
          sums[r][c].x = fmaf(w[r].x, x[c].x, fmaf(w[r].y, x[c].y, sums[r][c].x));
          sums[r][c].y = fmaf(w[r].x, x[c].y, fmaf(-w[r].y, x[c].x, sums[r][c].y));
        }
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 4; r++)
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int filter = top + threadIdx.y + r * BLOCK_Y, place = left + threadIdx.x + c * BLOCK_X;
      if (filter < FILTERS && place < PLACES)
        spectra_y[(frequency * FILTERS + filter) * PLACES + place] = sums[r][c];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) fft(const float2 *spectra_y, float *y) {
  extern __shared__ float2 tiles[];
  const int first = blockIdx.x * TILES, filter = blockIdx.y;
  for (int at = threadIdx.x; at < TILES * FREQUENCIES; at += THREADS) {
    const int tile = at % TILES, frequency = at / TILES;
    const int from = (frequency * FILTERS + filter) * PLACES + first + tile;
    const float2 zero = {0.0f, 0.0f};
    const float2 value = first + tile < PLACES ? spectra_y[from] : zero;
    // The transform of the conjugate is the conjugate of the inverse, which is real.
    tiles[(tile * SIZE + frequency / HALF) * ROW + frequency % HALF] = {value.x, -value.y};
  }
  float2 line[SIZE];
  float2 *const mine = tiles + threadIdx.x / SIZE * SIZE * ROW;
  const int own = threadIdx.x % SIZE;
  __syncthreads();
  if (own < HALF) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) line[i] = mine[i * ROW + own];
    transform(line);
#pragma unroll
    for (int i = 0; i < SIZE; i++) mine[i * ROW + own] = line[i];
  }
  __syncthreads();
  // The other half of a row are the conjugates of the first.
#pragma unroll
  for (int i = 0; i < SIZE; i++) {
    const float2 value = mine[own * ROW + (i < HALF ? i : SIZE - i)];
    line[i] = {value.x, i < HALF ? value.y : -value.y};
  }
  transform(line);
#pragma unroll
  for (int i = 0; i < SIZE; i++) mine[own * ROW + i].x = line[i].x;
  __syncthreads();
  for (int at = threadIdx.x; at < TILES * OWN_DOWN * OWN_ACROSS; at += THREADS) {
    const int tile = at / (OWN_DOWN * OWN_ACROSS), place = first + tile;
    const int r = at / OWN_ACROSS % OWN_DOWN, c = at % OWN_ACROSS;
    const int row = place / ACROSS % DOWN * OWN_DOWN + r, column = place % ACROSS * OWN_ACROSS + c;
    if (place < PLACES && row < OUT_HEIGHT && column < OUT_WIDTH)
      y[((place / (DOWN * ACROSS) * FILTERS + filter) * OUT_HEIGHT + row) * OUT_WIDTH + column] =
          tiles[(tile * SIZE + r * STRIDE) * ROW + c * STRIDE].x * (1.0f / (SIZE * SIZE));
  }
}
