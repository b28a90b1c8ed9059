// One output after the other.
//
// A task is a plane of the result: a filter on an image. Every number is uniform, so each
// multiply-add is an instruction of its own, on one lane of a register.
//
// Expect: A small part of the peak, as all but one of the lanes are idle, and each sum waits for
// itself.
MD_KERNEL(scalar) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int image = item / FILTERS, filter = item % FILTERS;
    for (uniform int row = 0; row < OUT_HEIGHT; row++)
      for (uniform int column = 0; column < OUT_WIDTH; column++) {
        uniform float sum = 0.0f;
        for (uniform int channel = 0; channel < CHANNELS; channel++)
          for (uniform int i = 0; i < WINDOW_HEIGHT; i++)
            for (uniform int j = 0; j < WINDOW_WIDTH; j++) {
              const uniform int r = row * STRIDE + i * DILATION - PADDING;
              const uniform int c = column * STRIDE + j * DILATION - PADDING;
              if (r >= 0 && r < HEIGHT && c >= 0 && c < WIDTH)
                sum = md_fma(
                    x[((image * CHANNELS + channel) * HEIGHT + r) * WIDTH + c],
                    w[((filter * CHANNELS + channel) * WINDOW_HEIGHT + i) * WINDOW_WIDTH + j],
                    sum);
            }
        y[(item * OUT_HEIGHT + row) * OUT_WIDTH + column] = sum;
      }
  }
}
