// A 3x3 convolution of stride 1 in exact float32 by Winograd's F(2x2, 3x3):
//
//     y = A^T [sum over channels of (G g G^T) * (B^T d B)] A
//
// for tiles d of 4 x 4 pixels, each two beside the one before, and 2 x 2 results of each: 16 products
// instead of 36.  A block makes TILES tiles of FILTERS filters from slabs of CHANNELS channels in
// shared memory; tiles of the next slab are on their way into registers meanwhile and filters, which
// winograd_filter.cu has transformed, into the other half of it.  Each warp computes two of the 16
// products, a thread 8 filters by 8 tiles of both.  Nothing that is transformed leaves the chip.
//
// Lanes, and the order of tiles in shared memory and of multiply-adds, are as in direct.cu, for the
// same reasons.
extern "C" __global__ void __launch_bounds__(256, 1) $NAME$($PARAMETERS$) {
  constexpr int FILTERS = $FILTERS$, TILES = $TILES$, CHANNELS = 8, LOADS = TILES * CHANNELS / 256;
  constexpr int ACROSS = TILES / 8;  // threads of a warp across tiles; the others across filters
  constexpr int HALF = CHANNELS * 16 * FILTERS, SLAB = HALF + CHANNELS * 16 * TILES;
  MD_SHARED;
  float *const slabs = (float *)md_shared;
  const int thread = threadIdx.x, lane = thread % 32, first = thread / 32 * 2;
  const int high = lane >> 2 & 4;
  const int tx = (lane & 1 | lane >> 1 & 2 | (ACROSS == 8 ? high : 0)) * 4;
  const int ty = (lane >> 1 & 1 | lane >> 2 & 2 | (ACROSS == 4 ? high : 0)) * 4;
  const int groups = (int)P_groups, padded = groups * FILTERS;
  const int c_begin = (int)blockIdx.y * (int)P_depth;  // of the part of the sum that it makes
  const int channels = min((int)P_channels, c_begin + (int)P_depth);
  const int k0 = (int)(blockIdx.x % groups) * FILTERS;
  const long long begin = (long long)(blockIdx.x / groups) * TILES;
  const int across = (int)P_across, plane = (int)P_plane;

  // The tile that this thread loads and transforms, for one or several channels of a slab.
  const int own = thread % TILES, channel = thread / TILES;
  unsigned int inside = 0;  // a bit for each of its pixels
  const float *from = x;
  if (begin + own < P_tiles) {
    const long long n = (begin + own) / plane;
    const int p = (int)(begin + own - n * plane);
    const int top = p / across * 2 - (int)P_top, left = p % across * 2 - (int)P_left;
    #pragma unroll
    for (int i = 0; i < 16; i++)
      if ((unsigned int)(top + i / 4) < (unsigned int)P_height &&
          (unsigned int)(left + i % 4) < (unsigned int)P_width)
        inside |= 1u << i;
    from += n * P_image + top * P_row + left;
  }
  float tile[LOADS][16];
  const auto load = [&](int c0) {
    #pragma unroll
    for (int l = 0; l < LOADS; l++) {
      const int c = c0 + channel + l * (256 / TILES);
      const unsigned int some = c < channels ? inside : 0;
      const float *at = from + c * P_channel;
      #pragma unroll
      for (int i = 0; i < 16; i++) {
        tile[l][i] = some >> i & 1 ? at[i % 4] : 0.0f;
        if (i % 4 == 3) at += P_row;
      }
    }
  };
  const auto transform = [&](float *slab) {
    #pragma unroll
    for (int l = 0; l < LOADS; l++) {
      float (&d)[16] = tile[l];
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        const float one = d[4 + j], two = d[8 + j];
        d[j] -= two;
        d[4 + j] = one + two;
        d[8 + j] = two - one;
        d[12 + j] = one - d[12 + j];
      }
      float *const to = slab + HALF + (channel + l * (256 / TILES)) * 16 * TILES + (own ^ 1);
      #pragma unroll
      for (int i = 0; i < 4; i++) {
        to[(i * 4 + 0) * TILES] = d[i * 4] - d[i * 4 + 2];
        to[(i * 4 + 1) * TILES] = d[i * 4 + 1] + d[i * 4 + 2];
        to[(i * 4 + 2) * TILES] = d[i * 4 + 2] - d[i * 4 + 1];
        to[(i * 4 + 3) * TILES] = d[i * 4 + 1] - d[i * 4 + 3];
      }
    }
  };
  const float *filters =
      w + (c_begin * 16ll + thread * 4 / FILTERS) * padded + k0 + thread * 4 % FILTERS;
  const auto fetch = [&](float *slab) {
    #pragma unroll
    for (int i = 0; i < HALF / 1024; i++, filters += 1024 / FILTERS * (long long)padded)
      md_copy<16>(slab + (thread + i * 256) * 4, filters);
  };

  float sum[2][8][8];
  #pragma unroll
  for (int i = 0; i < 128; i++) sum[i / 64][i / 8 % 8][i % 8] = 0.0f;
  fetch(slabs);
  load(c_begin);
  transform(slabs);
  md_copy_wait();
  __syncthreads();
  int slot = 0;
  #pragma unroll 1
  for (int c0 = c_begin; c0 < channels; c0 += CHANNELS) {
    const bool more = c0 + CHANNELS < channels;
    if (more) {
      fetch(slabs + (slot ^ 1) * SLAB);
      load(c0 + CHANNELS);
    }
    const float *const left = slabs + slot * SLAB + first * FILTERS + ty;
    const float *const right = slabs + slot * SLAB + HALF + first * TILES + tx;
    #pragma unroll 4
    for (int c = 0; c < CHANNELS; c++)
      #pragma unroll
      for (int e = 0; e < 2; e++) {
        float a[2][4], b[2][4];
        #pragma unroll
        for (int g = 0; g < 2; g++) {
          md_load<4>(a[g], left + (c * 16 + e) * FILTERS + g * (FILTERS / 2));
          md_load<4>(b[g], right + (c * 16 + e) * TILES + g * (TILES / 2));
        }
        #pragma unroll
        for (int i = 0; i < 8; i++)
          #pragma unroll
          for (int fro = 0; fro < 8; fro++) {
            const int j = i % 2 ? 7 - fro : fro;
            sum[e][i][j] = md_fma(a[i / 4][i % 4], b[j / 4][j % 4 ^ 1], sum[e][i][j]);
          }
      }
    slot ^= 1;
    if (more) transform(slabs + slot * SLAB);
    md_copy_wait();
    __syncthreads();
  }

  // Sums pass through shared memory, half of the filters at a time: a thread takes all 16 of a tile.
  constexpr int LINE = TILES + 4, MATRIX = FILTERS / 2 * LINE;
  #pragma unroll
  for (int g = 0; g < 2; g++) {
    #pragma unroll
    for (int e = 0; e < 2; e++)
      #pragma unroll
      for (int i = 0; i < 4; i++)
        #pragma unroll
        for (int h = 0; h < 2; h++) {
          const float (&s)[8] = sum[e][g * 4 + i];
          const float four[4] = {s[h * 4], s[h * 4 + 1], s[h * 4 + 2], s[h * 4 + 3]};
          md_store<4>(slabs + (first + e) * MATRIX + (ty + i) * LINE + h * (TILES / 2) + tx, four);
        }
    __syncthreads();
    #pragma unroll 1
    for (int at = thread; at < FILTERS / 2 * TILES; at += 256) {
      const int k = k0 + g * (FILTERS / 2) + at / TILES;
      const long long t = begin + at % TILES;
      if (k >= (int)P_filters || t >= P_tiles) continue;
      const float *const m = slabs + at / TILES * LINE + at % TILES;
      float half[2][4], a0[4], r[4];
      #pragma unroll
      for (int j = 0; j < 4; j++) {
        const float one = m[(4 + j) * MATRIX], two = m[(8 + j) * MATRIX];
        half[0][j] = m[j * MATRIX] + one + two;
        half[1][j] = one - two - m[(12 + j) * MATRIX];
      }
      #pragma unroll
      for (int i = 0; i < 2; i++) {
        a0[i * 2] = half[i][0] + half[i][1] + half[i][2];
        a0[i * 2 + 1] = half[i][1] - half[i][2] - half[i][3];
      }
      const long long n = t / plane;
      const int p = (int)(t - n * plane), row = p / across * 2, column = p % across * 2;
      bool there[4];
      #pragma unroll
      for (int j = 0; j < 4; j++)
        there[j] = row + j / 2 < (int)P_rows && column + j % 2 < (int)P_columns;
$EPILOGUE$
      float *const to = y + blockIdx.y * P_part + P_offset_y + n * P_image_y + k * P_channel_y + row * P_row_y + column;
      #pragma unroll
      for (int j = 0; j < 4; j++)
        if (there[j]) to[j / 2 * P_row_y + j % 2] = r[j];
    }
    __syncthreads();
  }
}
