// Mean and variance of what a kernel of pixels and filters writes, filter by filter: printed into
// stream.cu, whose threads write chunks of the same filters in every tile.  A thread keeps how many
// results it has written, from what their distances are taken (the mean of its first ones), the
// distances' sum, and that of their squares; in the end the threads of a block join these, always
// in the same order.
struct Moments {
  float first[ACROSS][8] = {}, sums[ACROSS][8] = {}, squares[ACROSS][8] = {};
  int count = 0;
};

// Adds the chunks of every ROWS-th of `left` rows.
MD_FUNCTION void add(Moments &moments, const uint4 (&chunks)[ACROSS][DOWN], int left) {
  const int rows = left > 0 ? min((left + ROWS - 1) / ROWS, (int)DOWN) : 0;
  md_pack<8, T> chunk;
  if (moments.count == 0 && rows > 0) {
    #pragma unroll
    for (int i = 0; i < ACROSS; i++)
      #pragma unroll
      for (int j = 0; j < DOWN; j++) {
        chunk.word = chunks[i][j];
        #pragma unroll
        for (int k = 0; k < 8; k++)
          if (j < rows) moments.first[i][k] += md_value(chunk.items[k]) / rows;
      }
  }
  #pragma unroll
  for (int i = 0; i < ACROSS; i++)
    #pragma unroll
    for (int j = 0; j < DOWN; j++) {
      chunk.word = chunks[i][j];
      if (j < rows) {
        #pragma unroll
        for (int k = 0; k < 8; k++) {
          const float apart = md_value(chunk.items[k]) - moments.first[i][k];
          moments.sums[i][k] += apart;
          moments.squares[i][k] += apart * apart;
        }
      }
    }
  moments.count += rows;
}

// Writes the block's part: from what distances are taken, their mean, and the squares of distances
// from that.  Threads meet in `all`, of 25 numbers each, which nobody uses any more.
MD_FUNCTION void leave(const Moments &moments, float *all, float *part, int n0, int filters) {
  enum { THREADS = GROUPS * 128, WIDE = LANES * 8, SIDE = SPLITS_N ? GROUPS : 1 };
  enum { EACH = THREADS / SIDE / LANES };  // threads with the same filters
  const int thread = threadIdx.x, side = thread / WIDE, c = thread % WIDE;
  #pragma unroll
  for (int i = 0; i < ACROSS; i++) {
    meet(1, THREADS);
    #pragma unroll
    for (int k = 0; k < 8; k++) {
      all[k * THREADS + thread] = moments.first[i][k];
      all[(8 + k) * THREADS + thread] = moments.sums[i][k];
      all[(16 + k) * THREADS + thread] = moments.squares[i][k];
    }
    all[24 * THREADS + thread] = (float)moments.count;
    meet(1, THREADS);
    const int n = n0 + side * N + i * WIDE + c;
    if (side < SIDE && n < filters) {
      const int own = side * (THREADS / SIDE) + c / 8;
      const float *const first = all + c % 8 * THREADS + own, *const counts = all + 24 * THREADS + own;
      const float *const sums = first + 8 * THREADS, *const squared = first + 16 * THREADS;
      const float base = first[0];  // there is no block without a pixel
      float mean = 0.0f, many = 0.0f, squares = 0.0f;
      for (int e = 0; e < EACH * LANES; e += LANES) {
        if (counts[e] == 0.0f) continue;
        mean += counts[e] * (first[e] - base) + sums[e];
        many += counts[e];
      }
      mean /= many;
      for (int e = 0; e < EACH * LANES; e += LANES) {
        if (counts[e] == 0.0f) continue;
        const float own_mean = sums[e] / counts[e], apart = first[e] - base + own_mean - mean;
        float own_squares = squared[e] - sums[e] * own_mean;
        if (own_squares < 0.0f) own_squares = 0.0f;  // by rounding
        if (squared[e] > $LARGEST$) own_squares = squared[e];  // not infinity - infinity
        squares += own_squares + counts[e] * apart * apart;
      }
      const long long stride = (long long)gridDim.x * filters;
      float *const to = part + (long long)blockIdx.x * filters + n;
      to[0] = base;
      to[stride] = mean;
      to[2 * stride] = squares;
    }
  }
}
