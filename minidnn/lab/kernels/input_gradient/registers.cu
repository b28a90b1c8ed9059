// Several channels a thread.
//
// Whether a position began there, and its gradient, are the same for all channels: a thread computes
// GROUP of them at once, in as many registers.
//
// Expect: One read of a gradient, and one look for its position, for GROUP products: several times
// faster, where the layer has so many channels.
extern "C" __global__ void registers(const float *g, const float *w, float *y, int out_height,
                                     int out_width) {
  constexpr int WINDOW = WINDOW_HEIGHT * WINDOW_WIDTH;
  const int place = blockIdx.x * (BLOCK_X * BLOCK_Y) + threadIdx.x;
  const int first = blockIdx.y * GROUP, image = blockIdx.z;
  if (place >= HEIGHT * WIDTH) return;
  const int row = place / WIDTH + PADDING, column = place % WIDTH + PADDING;
  float sums[GROUP] = {};
  for (int filter = 0; filter < FILTERS; filter++)
#pragma unroll
    for (int i = 0; i < WINDOW_HEIGHT; i++)
#pragma unroll
      for (int j = 0; j < WINDOW_WIDTH; j++) {
        const int r = row - i * DILATION, c = column - j * DILATION;
        if (r < 0 || c < 0 || r % STRIDE || c % STRIDE) continue;
        if (r / STRIDE >= out_height || c / STRIDE >= out_width) continue;
        const int plane = image * FILTERS + filter;
        const float value = g[(plane * out_height + r / STRIDE) * out_width + c / STRIDE];
        const int weight = (filter * CHANNELS + first) * WINDOW + i * WINDOW_WIDTH + j;
#pragma unroll
        for (int k = 0; k < GROUP; k++)
          if (first + k < CHANNELS) sums[k] = fmaf(value, w[weight + k * WINDOW], sums[k]);
      }
#pragma unroll
  for (int k = 0; k < GROUP; k++)
    if (first + k < CHANNELS) y[(image * CHANNELS + first + k) * (HEIGHT * WIDTH) + place] = sums[k];
}
