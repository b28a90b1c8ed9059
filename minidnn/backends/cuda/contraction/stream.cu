// A 1x1 convolution as a matrix product on tensor cores: pixels stream past the filters of a
// block, which lie in shared memory where STAYS, and else come with them.  Printed by stream.py,
// which says what the names in dollars stand for.
//
// A block makes PIXELS results at a time, one such tile after another.  Their channels go through
// a ring of slabs in shared memory, 64 channels each: one warp group loads (cp.async), GROUPS
// multiply (wgmma), and barriers say what is there (full) and what has been read (empty).  Each
// warp takes its sixteen rows into registers (ldmatrix), where what comes before the product is
// computed, so a slab of pixels is free again at once, one with filters behind the product.  The
// groups share a slab's pixels, or, HALVES, each takes all of them and its part of the filters.
// Each thread arrives for itself where it has read: one for a warp is no faster, and not what
// compute-sanitizer understands.
namespace stream_$NAME$ {
typedef $T$ T;
enum { N = $N$, HALVES = $HALVES$, STAYS = $STAYS$, GROUPS = $GROUPS$ };
enum { FILTERS = HALVES ? GROUPS * N : N, PIXELS = HALVES ? 64 : GROUPS * 64 };
enum { SLAB = (STAYS ? PIXELS : PIXELS + FILTERS) * 128 };
enum { PART = N % 32 ? 16 : 32, LANES = PART / 8, TURN = PART + 8 };
enum { ROWS = 32 / LANES, TURNS = 16 / ROWS, TURNED = GROUPS * 4 * 16 * TURN * 4 };

$HOPPER$
$TURN$
extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, 1) $NAME$($PARAMETERS$) {
  MD_SHARED;
  const int thread = threadIdx.x & 127, group = threadIdx.x >> 7;
  const int filters = (int)P_filters, chunks = (int)P_chunks, slabs = (int)P_slabs;
  const int tiles = (int)P_tiles, n0 = blockIdx.y * FILTERS;
  const int steps = (chunks + 1) / 2, each = (steps + 3) / 4;  // of 16 and of 64 channels
  const unsigned int begins = (unsigned int)__cvta_generic_to_shared(md_shared);
  const unsigned int ring = begins + 1023 & ~1023u;
  const unsigned int weights = ring + slabs * SLAB;
  const unsigned int turns = weights + STAYS * steps * FILTERS * 32, vectors = turns + TURNED;
  const unsigned int full = vectors + $BEFORE$ * steps * 64, empty = full + slabs * 8;

  if (threadIdx.x == 0) {
    for (int i = 0; i < slabs; i++) {
      expect(full + i * 8, 128);
      expect(empty + i * 8, GROUPS * 128);
    }
  }
  __syncthreads();

  int place = 0, round = 0;  // of the slab that comes next
  if (group == GROUPS) {
    if (GROUPS > 2) keep_registers<80>();
    const int lane = thread & 7, first = thread >> 3;
    int loaded = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const long long m0 = (long long)tile * PIXELS;
      for (int slab = 0; slab < each; slab++, loaded++) {
        if (loaded >= slabs) wait(empty + place * 8, round - 1);
        const int q = slab * 8 + lane;
        const T *from = x + (m0 + first) * P_x + q * 8;
        const unsigned int to = ring + place * SLAB + first * 128 + lane * 16;
        if (q < 2 * steps) {
          #pragma unroll
          for (int i = 0; i < PIXELS / 16; i++) {
            const bool inside = q < chunks && m0 + first + i * 16 < P_pixels;
            copy(swizzled<8>(to + i * 2048), inside ? from + i * 16 * P_x : x, inside);
          }
          #pragma unroll
          for (int i = 0; i < (STAYS ? 0 : FILTERS / 16); i++) {
            const int n = first + i * 16;
            const bool inside = q < chunks && n0 + n < filters;
            const T *row = inside ? w + ((n0 + n) * chunks + q) * 8 : w;
            copy(swizzled<8>(to + PIXELS * 128 + i * 2048), row, inside);
          }
        }
        arrive_with_copies(full + place * 8);
        if (++place == slabs) place = 0, round++;
      }
    }
    copies_end();
    return;
  }

  if (GROUPS > 2) take_registers<144>();
  // Filters: a warp takes 8 of them by 4 chunks at a time, which lie on different banks.
  const int across = (2 * steps + 3) / 4;
  for (int i = threadIdx.x; i < STAYS * across * FILTERS * 4; i += GROUPS * 128) {
    const int q = (i >> 5) % across * 4 + (i >> 3 & 3), n = (i >> 5) / across * 8 + (i & 7);
    const bool inside = q < chunks && n0 + n < filters;
    const T *from = inside ? w + ((n0 + n) * chunks + q) * 8 : w;
    if (q < 2 * steps) copy(weights + (q * FILTERS + n) * 16, from, inside);
  }
$BEFORE_VECTORS$
  copies_end();
  written();
  meet(1, GROUPS * 128);

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  float *turned = (float *)(md_shared + (turns - begins)) + warp * 16 * TURN;
  const int part_row = (HALVES ? 0 : group * 64) + (warp & 3) * 16;
  const unsigned int taken = weights + (HALVES ? group * N * 16 : 0);
  const unsigned int passing = ring + PIXELS * 128 + (HALVES ? group * N * 128 : 0);
  const int n1 = n0 + (HALVES ? group * N : 0) + lane % LANES * 8;
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const long long m1 = (long long)tile * PIXELS + part_row + lane / LANES;
$OTHERS$
    float c[N / 2];
    #pragma unroll
    for (int i = 0; i < N / 2; i++) c[i] = 0.0f;
    for (int slab = 0; slab < each; slab++) {
      wait(full + place * 8, round);
      const unsigned int at = ring + place * SLAB + (part_row + (lane & 15)) * 128
                              + (lane >> 4) * 16;
      // Of sixteen channels: those that stay lie 8 by 8, a slab's as its pixels do.
      auto weights_of = [&](int k) {
        return STAYS ? matrix(taken + (slab * 4 + k) * FILTERS * 32, FILTERS * 16)
                     : rows<8>(passing + place * SLAB + k * 32);
      };
      if (!STAYS) written();
      if (slab * 4 + 4 <= steps) {
        unsigned int a[4][4];
        #pragma unroll
        for (int k = 0; k < 4; k++) {
          fragments(a[k], swizzled<8>(at + k * 32));
$SCALE4$
        }
        if (STAYS) arrive(empty + place * 8);
        products_begin();
        #pragma unroll
        for (int k = 0; k < 4; k++) multiply<T>(c, a[k], weights_of(k), 1);
        products_commit();
        products_end(c);
        if (!STAYS) arrive(empty + place * 8);
      } else {
        for (int k = 0; k < steps - slab * 4; k++) {
          unsigned int a[1][4];
          fragments(a[0], swizzled<8>(at + k * 32));
$SCALE1$
          products_begin();
          multiply<T>(c, a[0], weights_of(k), 1);
          products_commit();
          products_end(c);
        }
        arrive(empty + place * 8);
      }
      if (++place == slabs) place = 0, round++;
    }

    // Each warp turns its results, PART columns at a time, so that threads write whole chunks.
    #pragma unroll
    for (int part = 0; part < N / PART; part++) {
      turn<PART, TURN>(turned, c + part * PART / 2, lane);
      __syncwarp();
      const int n = n1 + part * PART;
      const bool some = n < filters;
$VECTORS$
      #pragma unroll
      for (int k = 0; k < TURNS; k++) {
        const int row = lane / LANES + k * ROWS;
        const long long m = m1 + k * ROWS;
        if (some && m < P_pixels) {
          float a0[8], r[8];
          read_turned(a0, turned + row * TURN + lane % LANES * 8, row);
$EPILOGUE$
          md_store<8>(y + m * P_y + n, r);
        }
      }
      $JOIN$
    }
  }
}
}  // namespace stream_$NAME$
