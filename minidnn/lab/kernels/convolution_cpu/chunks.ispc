// Chunks of channels.
//
// A task is a whole plane of a group of filters. It takes CHUNK channels at a time, for all rows:
// their weights stay in the first cache while the rows pass, and the sums so far wait in the
// result.
//
// Expect: Faster where a group's weights do not fit the first cache: many channels, small planes.
// Elsewhere the result is read and written again for nothing.
MD_KERNEL(chunks) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int image = item / (FILTER_BLOCKS / VECTORS);
    const uniform int block = item % (FILTER_BLOCKS / VECTORS) * VECTORS;
    for (uniform int begin = 0; begin < CHANNELS; begin += CHUNK)
      for (uniform int row = 0; row < OUT_HEIGHT; row++) {
        uniform int done = 0;  // columns before are summed
        for (uniform int next = 0; next < OUT_WIDTH; next += POSITIONS) {
          const uniform int column = min(next, OUT_WIDTH - POSITIONS);  // the last overlaps
          const uniform int line = (image * FILTER_BLOCKS + block) * OUT_HEIGHT + row;
          uniform float * uniform to = y + (line * OUT_WIDTH + column) * LANES;
          float sums[VECTORS][POSITIONS];
#pragma unroll
          for (uniform int v = 0; v < VECTORS; v++)
#pragma unroll
            for (uniform int p = 0; p < POSITIONS; p++)
              sums[v][p] =
                  begin ? to[(v * OUT_HEIGHT * OUT_WIDTH + p) * LANES + programIndex] : 0.0f;
          for (uniform int channel = begin; channel < min(begin + CHUNK, CHANNELS); channel++) {
            const uniform int plane = image * CHANNEL_BLOCKS + channel / LANES;
            const uniform int first = (block * CHANNELS + channel) * WINDOW_HEIGHT * WINDOW_WIDTH;
            for (uniform int i = 0; i < WINDOW_HEIGHT; i++)
              for (uniform int j = 0; j < WINDOW_WIDTH; j++) {
                const uniform int r = row * STRIDE + i * DILATION;
                const uniform int c = column * STRIDE + j * DILATION;
                const uniform int place = (plane * FULL_HEIGHT + r) * FULL_WIDTH + c;
                const uniform float * uniform from = x + place * LANES + channel % LANES;
                const uniform float * uniform weights = w + (first + i * WINDOW_WIDTH + j) * LANES;
                float vectors[VECTORS];
#pragma unroll
                for (uniform int v = 0; v < VECTORS; v++)
                  vectors[v] = weights[v * CHANNELS * WINDOW_HEIGHT * WINDOW_WIDTH * LANES +
                                       programIndex];
#pragma unroll
                for (uniform int p = 0; p < POSITIONS; p++)
#pragma unroll
                  for (uniform int v = 0; v < VECTORS; v++)
                    sums[v][p] = md_fma(from[p * STRIDE * LANES], vectors[v], sums[v][p]);
              }
          }
#pragma unroll
          for (uniform int p = 0; p < POSITIONS; p++)
            if (column + p >= done)
#pragma unroll
              for (uniform int v = 0; v < VECTORS; v++)
                to[(v * OUT_HEIGHT * OUT_WIDTH + p) * LANES + programIndex] = sums[v][p];
          done = column + POSITIONS;
        }
      }
  }
}
