// A convolution of stride 1 as a matrix product on tensor cores, where its filters do not all fit
// shared memory: pixels with their neighbours and filters pass through it together, a few channels
// of both at a time.  Printed by window.py, which says what the names in dollars stand for.
//
// Images are one line of pixels, as halo.cu has them: a tap is a shift along the line.  A block
// makes PIXELS results, one such tile after another.  A slab holds 16 * CHUNKS bytes of each of
// `region` pixels that the tile reads and of each tap of N filters.  One warp group loads
// (cp.async), two multiply (wgmma), TILES times 64 results each, which share the filters they
// read; barriers in shared memory say what is there (full) and what has been read (empty).
namespace window_$NAME$ {
typedef $T$ T;
enum { N = $N$, TAPS = $TAPS$, KW = $KW$, DY = $DY$, DX = $DX$ };
enum { TILES = $TILES$, CHUNKS = $CHUNKS$, PIXELS = 2 * TILES * 64, ROW = 16 * CHUNKS };
enum { WEIGHTS = TAPS * N * ROW, TURN = N + 8, TURNED = 8 * 16 * TURN * 4 };
enum { ACROSS = N / 8, ROWS = 32 / ACROSS };  // threads that write a pixel, pixels of a warp
enum { AT_ONCE = 128 / CHUNKS };

$HOPPER$
$TURN$
extern "C" __global__ void __launch_bounds__(384, 1) $NAME$($PARAMETERS$) {
  MD_SHARED;
  const int thread = threadIdx.x & 127, group = threadIdx.x >> 7;
  const int filters = (int)P_filters, line = (int)P_line, plane = (int)P_plane;
  const int tiles = (int)P_tiles, region = (int)P_region, slabs = (int)P_slabs;
  const int parts = (int)P_parts, n0 = blockIdx.y * N, slab_bytes = region * ROW + WEIGHTS;
  const unsigned int begins = (unsigned int)__cvta_generic_to_shared(md_shared);
  const unsigned int ring = begins + 1023 & ~1023u;  // the swizzle's pattern begins there
  const unsigned int turns = ring + slabs * slab_bytes;
  const unsigned int full = turns + TURNED, empty = full + slabs * 8, places = empty + slabs * 8;

  if (threadIdx.x == 0) {
    for (int i = 0; i < slabs; i++) {
      expect(full + i * 8, 128);
      expect(empty + i * 8, 8);
    }
  }
  __syncthreads();

  int place = 0, round = 0;  // of the slab that comes next
  if (group == 2) {
    // Where the region's pixels lie, in chunks of 8 channels; less than 0 for zeros.
    int *const table = (int *)(md_shared + (places - begins));
    const int lane = thread % CHUNKS, first = thread / CHUNKS;
    const int before = (int)P_PY * line + (int)P_PX;
    int loaded = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      meet(2, 128);
      for (int i = thread; i < region; i += 128) {
        const int at = tile * PIXELS - before + i;
        const int image = at / plane, in_image = at - image * plane;
        const int row = in_image / line, column = in_image - row * line;
        const bool inside = at >= 0 && image < (int)P_batch && row < (int)P_H && column < (int)P_W;
        table[i] = inside ? (int)((image * P_image + row * P_row + column * P_pixel) / 8) : -1;
      }
      meet(2, 128);
      for (int part = 0; part < parts; part++, loaded++) {
        if (loaded >= slabs) wait(empty + place * 8, round - 1);
        const unsigned int to = ring + place * slab_bytes + lane * 16;
        const int q = part * CHUNKS + lane;
        #pragma unroll 4
        for (int i = first; i < region; i += AT_ONCE) {
          const int at = table[i];
          copy(swizzled<CHUNKS>(to + i * ROW), at < 0 ? x : x + (at + (long long)q) * 8, at >= 0);
        }
        #pragma unroll 4
        for (int i = first; i < TAPS * N; i += AT_ONCE) {
          const int tap = i / N, n = n0 + i % N;
          const T *from = n < filters ? w + ((n * TAPS + tap) * (parts * CHUNKS) + q) * 8 : w;
          copy(swizzled<CHUNKS>(to + region * ROW + i * ROW), from, n < filters);
        }
        arrive_with_copies(full + place * 8);
        if (++place == slabs) place = 0, round++;
      }
    }
    copies_end();
    return;
  }

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float *turned = (float *)(md_shared + (turns - begins)) + warp * 16 * TURN;
  const int n = n0 + lane % ACROSS * 8;
  const bool some = n < filters;
$VECTORS$
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    float c[TILES][N / 2];
    #pragma unroll
    for (int g = 0; g < TILES; g++)
      #pragma unroll
      for (int i = 0; i < N / 2; i++) c[g][i] = 0.0f;
    for (int part = 0; part < parts; part++) {
      wait(full + place * 8, round);
      written();
      const unsigned int slab = ring + place * slab_bytes, taps = slab + region * ROW;
      products_begin();
      #pragma unroll
      for (int tap = 0; tap < TAPS; tap++) {
        const int shift = group * TILES * 64 + tap / KW * DY * line + tap % KW * DX;
        #pragma unroll
        for (int k = 0; k < CHUNKS / 2; k++) {
          #pragma unroll
          for (int g = 0; g < TILES; g++)
            multiply<T>(c[g], rows<CHUNKS>(slab + (shift + g * 64) * ROW + k * 32),
                        rows<CHUNKS>(taps + tap * N * ROW + k * 32), 1);
        }
      }
      products_commit();
      #pragma unroll
      for (int g = 0; g < TILES; g++) products_end(c[g]);
      if (lane == 0) arrive(empty + place * 8);
      if (++place == slabs) place = 0, round++;
    }

    // Each warp turns its results, sixteen pixels at a time, so that threads write whole chunks.
    #pragma unroll
    for (int g = 0; g < TILES; g++) {
      turn<N, TURN>(turned, c[g], lane);
      __syncwarp();
      #pragma unroll
      for (int k = 0; k < (15 + ROWS) / ROWS; k++) {
        const int row = lane / ACROSS + k * ROWS;
        const int at = tile * PIXELS + (group * TILES + g) * 64 + (warp & 3) * 16 + row;
        const int image = at / plane, in_image = at - image * plane;
        const int down = in_image / line, across = in_image - down * line;
        const bool there = down < (int)P_rows && across < (int)P_columns && image < (int)P_batch;
        if (there && some && row < 16 && lane < ROWS * ACROSS) {
          const long long m = ((long long)image * P_rows + down) * P_columns + across;
          float a0[8], r[8];
          read_turned(a0, turned + row * TURN + lane % ACROSS * 8, row);
$EPILOGUE$
          md_store<8>(y + m * P_y + n, r);
        }
      }
      $JOIN$
    }
  }
}
}  // namespace window_$NAME$
