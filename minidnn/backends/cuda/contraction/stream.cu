// A 1x1 convolution as a matrix product on tensor cores: pixels stream past the filters of a
// block, which lie in shared memory where STAYS, and else come with them.  Printed by stream.py,
// which says what the names in dollars stand for.
//
// A block makes PIXELS results at a time, one such tile after another.  Their channels go through
// a ring of slabs in shared memory, 64 channels each: one warp group loads (cp.async), GROUPS
// multiply (wgmma), and barriers say what is there (full) and what has been read (empty).  Each
// warp takes its sixteen rows into registers (ldmatrix), where what comes before the product is
// computed, so a slab of pixels is free again at once, one with filters behind the product.  The
// groups share a slab's pixels, or, SPLITS_N, each takes all of them and its part of the filters.
// Where something MAKES what is read, in front of a gradient, a warp group of its own puts that where
// the first of its tensors was, and says so (ready).
// Each thread arrives for itself where it has read: one for a warp is no faster, and not what
// compute-sanitizer understands.
namespace stream_$NAME$ {
typedef $T$ T;
enum { N = $N$, SPLITS_N = $SPLITS_N$, STAYS = $STAYS$, GROUPS = $GROUPS$, MAKES = $MAKES$ };
enum { FILTERS = SPLITS_N ? GROUPS * N : N, PIXELS = SPLITS_N ? 64 : GROUPS * 64 };
enum { READ = $TENSORS$ * PIXELS, SLAB = (STAYS ? READ : READ + FILTERS) * 128 };
enum { PITCH = N + 8, JOINED = GROUPS * 4 * 16 * PITCH };  // a row of results, and all of them
// Columns that a thread joins at once: it has registers for so many beside its sums.
enum { AT_ONCE = N > 128 ? 32 : N % 64 == 0 ? 64 : N % 32 == 0 ? 32 : 16 };
enum { LANES = N % 128 == 0 ? 16 : N % 64 == 0 ? 8 : N % 32 == 0 ? 4 : 2 };  // that write a row
enum { ROWS = 32 / LANES, DOWN = 16 / ROWS, ACROSS = N / (LANES * 8) };

$HOPPER$
$SUMS$
extern "C" __global__ void __launch_bounds__((GROUPS + 1 + MAKES) * 128, 1) $NAME$($PARAMETERS$) {
  MD_SHARED;
  const int thread = threadIdx.x & 127, group = threadIdx.x >> 7;
  const int filters = (int)P_filters, chunks = (int)P_chunks, slabs = (int)P_slabs;
  const int tiles = (int)P_tiles, n0 = blockIdx.y * FILTERS;
  const int steps = (chunks + 1) / 2, each = (steps + 3) / 4;  // of 16 and of 64 channels
  const unsigned int begins = (unsigned int)__cvta_generic_to_shared(md_shared);
  const unsigned int ring = begins + 1023 & ~1023u;
  const unsigned int weights = ring + slabs * SLAB;
  const unsigned int joined = weights + STAYS * steps * FILTERS * 32;
  const unsigned int vectors = joined + $JOINED$ * JOINED * 2;
  const unsigned int behind = vectors + $BEFORE$ * steps * 64;
  const unsigned int given_at = behind + $BEHIND$ * FILTERS * 6;
  const unsigned int facts_at = given_at + $GIVEN$ * FILTERS * 4;
  const unsigned int full = facts_at + $FACTS$ * steps * 64, empty = full + slabs * 8;
  const unsigned int ready = MAKES ? empty + slabs * 8 : full;

  if (threadIdx.x == 0) {
    for (int i = 0; i < slabs; i++) {
      expect(full + i * 8, 128);
      expect(empty + i * 8, GROUPS * 128);
      if (MAKES) expect(ready + i * 8, 128);
    }
  }
  __syncthreads();

  int place = 0, round = 0;  // of the slab that comes next
  if (group == GROUPS) {
    if (MAKES) keep_registers<40>();
    else if (GROUPS > 2) keep_registers<80>();
    const int lane = thread & 7, first = thread >> 3;
    int loaded = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
      const long long m0 = (long long)tile * PIXELS;
      for (int slab = 0; slab < each; slab++, loaded++) {
        if (loaded >= slabs) wait(empty + place * 8, round - 1);
        // Chunks behind the last are zeros; rows that there are not give results that nobody reads.
        const int q = slab * 8 + lane, left = (int)min(P_pixels - m0, (long long)PIXELS) - first;
        const bool some = q < chunks;
        const unsigned int to = swizzled<8>(ring + place * SLAB + first * 128 + lane * 16);
        const T *from = x + (m0 + first) * P_x + (some ? q * 8 : 0);
        if (q < 2 * steps) {
          #pragma unroll
          for (int i = 0; i < PIXELS; i += 16, from += 16 * P_x)
            if (i < left) copy(to + i * 128, from, some);
$LOAD$
          const T *row = w + ((n0 + first) * chunks + (some ? q : 0)) * 8;
          #pragma unroll
          for (int i = 0; i < (STAYS ? 0 : FILTERS); i += 16, row += 16 * 8 * chunks)
            if (n0 + first + i < filters) copy(to + (READ + i) * 128, row, some);
        }
        arrive_with_copies(full + place * 8);
        if (++place == slabs) place = 0, round++;
      }
    }
    copies_end();
    return;
  }

$FRONT$

  if (MAKES) take_registers<184>();
  else if (GROUPS > 2) take_registers<144>();
  // Filters: a warp takes 8 of them by 4 chunks at a time, which lie on different banks.
  const int across = (2 * steps + 3) / 4;
  for (int i = threadIdx.x; i < STAYS * across * FILTERS * 4; i += GROUPS * 128) {
    const int q = (i >> 5) % across * 4 + (i >> 3 & 3), n = (i >> 5) / across * 8 + (i & 7);
    const bool inside = q < chunks && n0 + n < filters;
    const T *from = inside ? w + ((n0 + n) * chunks + q) * 8 : w;
    if (q < 2 * steps) copy(weights + (q * FILTERS + n) * 16, from, inside);
  }
$BEFORE_VECTORS$
$BEHIND_VECTORS$
$SUMS_VECTORS$
  copies_end();
$BEHIND_NUMBERS$
  written();
  meet(1, GROUPS * 128);

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  T *const own = (T *)(md_shared + (joined - begins)) + warp * 16 * PITCH;
  const int part_row = (SPLITS_N ? 0 : group * 64) + (warp & 3) * 16;
  const unsigned int taken = weights + (SPLITS_N ? group * N * 16 : 0);
  const unsigned int passing = ring + READ * 128 + (SPLITS_N ? group * N * 128 : 0);
  const int n1 = n0 + (SPLITS_N ? group * N : 0);
  // Of the first chunk that a thread writes, and asks for: every ROWS-th row, LANES chunks further.
  const int row0 = lane / LANES, column0 = lane % LANES * 8;
$OTHERS$
$SUMS_BEGIN$
  for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const long long m1 = (long long)tile * PIXELS + part_row;
    const int left = (int)min(P_pixels - m1, 16ll);
    float c[N / 2];
    #pragma unroll
    for (int i = 0; i < N / 2; i++) c[i] = 0.0f;
    for (int slab = 0; slab < each; slab++) {
      wait(ready + place * 8, round);
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

    // A warp joins its sixteen rows with the others' where these lie, as its registers have them,
    // and leaves them there; then threads write whole chunks, and ask for the next tile's.  Some
    // columns are read before any of them is written: to the compiler, all may be one place.
$ARRIVED$
    __syncwarp();
    #pragma unroll
    for (int part = 0; part < N; part += AT_ONCE) {
      T *const at = own + (lane >> 2) * PITCH + part + (lane & 3) * 2;
$READ$
      #pragma unroll
      for (int i = 0; i < AT_ONCE / 4; i++) {
        const float *const sums = c + part / 2 + i * 2;
        float a0[2] = {sums[0], sums[1]}, r[2];
$EPILOGUE$
        md_write<2>(at + (i & 1) * 8 * PITCH + i / 2 * 8, r);
      }
    }
    $JOIN$
    uint4 chunks[ACROSS][DOWN];
    #pragma unroll
    for (int i = 0; i < ACROSS; i++)
      #pragma unroll
      for (int j = 0; j < DOWN; j++)
        chunks[i][j] = *(uint4 *)(own + (row0 + j * ROWS) * PITCH + column0 + i * LANES * 8);
$WRITE$
$NEXT_OTHERS$
$SUMS_ADD$
  }
$SUMS_END$
}
}  // namespace stream_$NAME$
