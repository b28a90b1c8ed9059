// Blocks of channels.
//
// Lanes are neighbouring filters, and values lie in blocks of as many channels as there are lanes,
// with their border of zeros. A number of the image serves all lanes, no lane is empty, and nothing
// is compared. Weights still lie as they were, so the lanes gather them.
//
// Expect: Hardly an improvement: a gather costs as much as all of its lanes.
MD_KERNEL(blocked) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int row = item % OUT_HEIGHT, image = item / OUT_HEIGHT / FILTER_BLOCKS;
    const uniform int block = item / OUT_HEIGHT % FILTER_BLOCKS;
    const int filter = min(block * LANES + programIndex, FILTERS - 1);
    for (uniform int column = 0; column < OUT_WIDTH; column++) {
      float sum = 0.0f;
      for (uniform int channel = 0; channel < CHANNELS; channel++) {
        const uniform int plane = image * CHANNEL_BLOCKS + channel / LANES;
        for (uniform int i = 0; i < WINDOW_HEIGHT; i++)
          for (uniform int j = 0; j < WINDOW_WIDTH; j++) {
            const uniform int r = row * STRIDE + i * DILATION;
            const uniform int c = column * STRIDE + j * DILATION;
            const uniform int place = (plane * FULL_HEIGHT + r) * FULL_WIDTH + c;
            const float weight =
                w[((filter * CHANNELS + channel) * WINDOW_HEIGHT + i) * WINDOW_WIDTH + j];
            sum = md_fma(x[place * LANES + channel % LANES], weight, sum);
          }
      }
      if (block * LANES + programIndex >= FILTERS) sum = 0.0f;
      y[(item * OUT_WIDTH + column) * LANES + programIndex] = sum;
    }
  }
}
