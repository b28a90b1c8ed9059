// Several positions at once.
//
// POSITIONS neighbouring columns are summed together, each in a register. A vector of weights is
// read once for all of them, and while one sum waits for its last product the others go on.
//
// Expect: The wait is gone: reads limit now, one of the image for each multiply-add.
MD_KERNEL(positions) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int row = item % OUT_HEIGHT, image = item / OUT_HEIGHT / FILTER_BLOCKS;
    const uniform int block = item / OUT_HEIGHT % FILTER_BLOCKS;
    for (uniform int next = 0; next < OUT_WIDTH; next += POSITIONS) {
      const uniform int column = min(next, OUT_WIDTH - POSITIONS);  // the last overlaps
      float sums[POSITIONS];
#pragma unroll
      for (uniform int p = 0; p < POSITIONS; p++) sums[p] = 0.0f;
      for (uniform int channel = 0; channel < CHANNELS; channel++) {
        const uniform int plane = image * CHANNEL_BLOCKS + channel / LANES;
        const uniform int first = (block * CHANNELS + channel) * WINDOW_HEIGHT * WINDOW_WIDTH;
        for (uniform int i = 0; i < WINDOW_HEIGHT; i++)
          for (uniform int j = 0; j < WINDOW_WIDTH; j++) {
            const uniform int r = row * STRIDE + i * DILATION;
            const uniform int c = column * STRIDE + j * DILATION;
            const uniform int place = (plane * FULL_HEIGHT + r) * FULL_WIDTH + c;
            const uniform float * uniform from = x + place * LANES + channel % LANES;
            const float weight = w[(first + i * WINDOW_WIDTH + j) * LANES + programIndex];
#pragma unroll
            for (uniform int p = 0; p < POSITIONS; p++)
              sums[p] = md_fma(from[p * STRIDE * LANES], weight, sums[p]);
          }
      }
#pragma unroll
      for (uniform int p = 0; p < POSITIONS; p++)
        y[(item * OUT_WIDTH + column + p) * LANES + programIndex] = sums[p];
    }
  }
}
