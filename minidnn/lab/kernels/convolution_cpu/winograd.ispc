// Winograd: fewer products, for more additions.
//
// For 2 x 2 outputs of a 3 x 3 window, 16 products for each channel do what 36 did: of a tile of
// the image and of the window, both transformed by additions. Windows are transformed when they are
// packed; a task transforms TILES tiles of a row for all channels, multiplies, and transforms back.
//
// Expect: Up to 2.25 times as fast as a tile of registers where there are many channels and
// filters, and less where transforms, or 16 sets of weights, weigh more. It knows 3 x 3 windows of
// stride 1 alone.
MD_KERNEL(winograd) {
  const uniform float * uniform x = MD_IN(float, 0);
  const uniform float * uniform w = MD_IN(float, 1);
  uniform float * uniform y = MD_OUT(float, 2);
  uniform float tiles[16][TILES][CHANNEL_BLOCKS * LANES];
  for (uniform int item = md_begin; item < md_end; item++) {
    const uniform int image = item / TILES_DOWN, row = item % TILES_DOWN * 2;
    for (uniform int next = 0; next < TILES_ACROSS; next += TILES) {
      for (uniform int block = 0; block < CHANNEL_BLOCKS; block++)
        for (uniform int t = 0; t < TILES; t++) {
          const uniform int column = min(next + t, TILES_ACROSS - 1) * 2;
          const uniform int line = (image * CHANNEL_BLOCKS + block) * EVEN_HEIGHT + row;
          const uniform float * uniform from = x + (line * EVEN_WIDTH + column) * LANES;
          float half[4][4];
#pragma unroll
          for (uniform int j = 0; j < 4; j++) {
            const float a = from[j * LANES + programIndex];
            const float b = from[(EVEN_WIDTH + j) * LANES + programIndex];
            const float c = from[(2 * EVEN_WIDTH + j) * LANES + programIndex];
            const float d = from[(3 * EVEN_WIDTH + j) * LANES + programIndex];
            half[0][j] = a - c;
            half[1][j] = b + c;
            half[2][j] = c - b;
            half[3][j] = b - d;
          }
#pragma unroll
          for (uniform int i = 0; i < 4; i++) {
            const uniform int at = block * LANES;
            tiles[i * 4][t][at + programIndex] = half[i][0] - half[i][2];
            tiles[i * 4 + 1][t][at + programIndex] = half[i][1] + half[i][2];
            tiles[i * 4 + 2][t][at + programIndex] = half[i][2] - half[i][1];
            tiles[i * 4 + 3][t][at + programIndex] = half[i][1] - half[i][3];
          }
        }
      for (uniform int block = 0; block < FILTER_BLOCKS; block += VECTORS) {
        float products[16][VECTORS][TILES];
        for (uniform int k = 0; k < 16; k++) {
          float sums[VECTORS][TILES];
#pragma unroll
          for (uniform int v = 0; v < VECTORS; v++)
#pragma unroll
            for (uniform int t = 0; t < TILES; t++) sums[v][t] = 0.0f;
          for (uniform int channel = 0; channel < CHANNELS; channel++) {
            float vectors[VECTORS];
#pragma unroll
            for (uniform int v = 0; v < VECTORS; v++) {
              const uniform int set = (block + v) * 16 + k;
              vectors[v] = w[(set * CHANNELS + channel) * LANES + programIndex];
            }
#pragma unroll
            for (uniform int t = 0; t < TILES; t++)
#pragma unroll
              for (uniform int v = 0; v < VECTORS; v++)
                sums[v][t] = md_fma(tiles[k][t][channel], vectors[v], sums[v][t]);
          }
#pragma unroll
          for (uniform int v = 0; v < VECTORS; v++)
#pragma unroll
            for (uniform int t = 0; t < TILES; t++) products[k][v][t] = sums[v][t];
        }
        for (uniform int v = 0; v < VECTORS; v++)
          for (uniform int t = 0; t < TILES && next + t < TILES_ACROSS; t++) {
            float half[2][4];
#pragma unroll
            for (uniform int j = 0; j < 4; j++) {
              const float b = products[4 + j][v][t], c = products[8 + j][v][t];
              half[0][j] = products[j][v][t] + b + c;
              half[1][j] = b - c - products[12 + j][v][t];
            }
            const uniform int column = (next + t) * 2;
            const uniform int plane = image * FILTER_BLOCKS + block + v;
            for (uniform int i = 0; i < 2 && row + i < OUT_HEIGHT; i++) {
              const uniform int line = (plane * OUT_HEIGHT + row + i) * OUT_WIDTH + column;
              y[line * LANES + programIndex] = half[i][0] + half[i][1] + half[i][2];
              if (column + 1 < OUT_WIDTH)
                y[(line + 1) * LANES + programIndex] = half[i][1] - half[i][2] - half[i][3];
            }
          }
      }
    }
  }
}
