// A foreach over rows.
//
// Lanes are neighbouring columns of a row: foreach turns the loop over columns into vectors, and
// lanes outside the image are switched off.
//
// Expect: As many times faster as there are lanes where rows are long, less where the last vector
// of a row is mostly empty; with a stride, lanes read apart from each other.
MD_KERNEL(plane) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int image = item / FILTERS, filter = item % FILTERS;
    for (uniform int row = 0; row < OUT_HEIGHT; row++)
      foreach (column = 0 ... OUT_WIDTH) {
        float sum = 0.0f;
        for (uniform int channel = 0; channel < CHANNELS; channel++)
          for (uniform int i = 0; i < WINDOW_HEIGHT; i++) {
            const uniform int r = row * STRIDE + i * DILATION - PADDING;
            if (r < 0 || r >= HEIGHT) continue;
            const uniform int line = ((image * CHANNELS + channel) * HEIGHT + r) * WIDTH;
            for (uniform int j = 0; j < WINDOW_WIDTH; j++) {
              const int c = column * STRIDE + j * DILATION - PADDING;
              const uniform float weight =
                  w[((filter * CHANNELS + channel) * WINDOW_HEIGHT + i) * WINDOW_WIDTH + j];
              if (c >= 0 && c < WIDTH) sum = md_fma(x[line + c], weight, sum);
            }
          }
        y[(item * OUT_HEIGHT + row) * OUT_WIDTH + column] = sum;
      }
  }
}
