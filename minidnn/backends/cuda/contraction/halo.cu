// A convolution of stride 1 as a matrix product on tensor cores, its image read once: pixels lie
// with their neighbours in shared memory, all filters beside them.  Printed by halo.py, which says
// what the names in dollars stand for.
//
// Images are one line of pixels: rows follow each other with as many zeros between them as the
// window reaches beyond them, and so do images with rows of zeros.  Then a tap is a shift along
// the line, and what lies RANGE pixels around 64 results is all that they need.  A block makes a
// part of the line, 64 results after the other.  Its pixels go through a ring of SLABS times 64
// places; places 0 to 63 lie once more behind the end, so that 64 pixels in a row never wrap.
//
// One warp group loads (cp.async), GROUPS multiply (wgmma), 64 results of the tiles in turn; barriers
// in shared memory say what is there (full) and what has been read (empty).  While one waits for
// its products or writes results, others multiply: so what does not depend on the products is
// computed, and asked for, before they are there.
//
// A pixel's channels lie in panels of CHUNKS times 16 bytes, swizzled by their addresses: shifting
// by a pixel is shifting the address, and eight pixels in a row never share a bank.  Panels of one
// chunk are not swizzled: eight pixels in a row are then a core matrix of 128 bytes, two of them
// where the shift is no multiple of eight.
namespace halo_$NAME$ {
typedef $T$ T;
enum { N = $N$, C8 = $C8$, KH = $KH$, KW = $KW$, DY = $DY$, DX = $DX$, SLABS = $SLABS$ };
// Products go by 16 channels.  A last 8 go with the next tap's, and those of a row's last tap with
// zeros on both sides, so that nothing is multiplied that the window does not read.
enum { PRODUCTS = KH * KW * C8, ZEROS = C8 % 2 && KW % 2 ? (N < 64 ? 64 : N) * 16 : 0 };
enum { CHUNKS = $CHUNKS$, PANELS = C8 / CHUNKS, READERS = C8 < 8 ? C8 : 8 };
enum { RING = SLABS * 64, PITCH = (RING + 64) * 16 * CHUNKS + (CHUNKS == 1) * 16 };
// Threads that write a pixel, pixels that a warp writes at once, and how often it does.
enum { LANES = N / 8, ROWS = $ROWS$, DOWN = (15 + ROWS) / ROWS };
enum { GROUPS = $GROUPS$, TAKEN = $TAKEN$, FILTERS = N, SPLITS_N = 0, ACROSS = 1 };
typedef $TURNED$ Turned;  // results on their way to whole chunks, rows of TURN
enum { TURN = $TURN$, TURNED = GROUPS * 4 * 16 * TURN * sizeof(Turned) };
enum { WEIGHTS = PRODUCTS * N * 16, PIXELS = PANELS * PITCH };

$HOPPER$
$TURNING$
$SUMS$
extern "C" __global__ void __launch_bounds__(GROUPS * 128 + 128, $BLOCKS$) $NAME$($PARAMETERS$) {
  MD_SHARED;
  const unsigned int begins = (unsigned int)__cvta_generic_to_shared(md_shared);
  const unsigned int ring = begins + 1023 & ~1023u;  // the swizzle's pattern begins there
  const unsigned int shared = ring + PIXELS;
  const unsigned int zeros = shared + WEIGHTS, given_at = zeros + ZEROS + TURNED;
  const unsigned int full = given_at + $GIVEN$ * N * 4, empty = full + SLABS * 8;
  const int thread = threadIdx.x & 127, group = threadIdx.x >> 7;
  const int filters = (int)P_filters, line = (int)P_line, plane = (int)P_plane;
  // This block's part of the line: results from `begin` on, 64 for each of its tiles.
  const int tiles = (int)P_tiles - blockIdx.x * (int)P_each < (int)P_each
                    ? (int)P_tiles - blockIdx.x * (int)P_each : (int)P_each;
  const int begin = blockIdx.x * (int)P_each * 64, n0 = blockIdx.y * N;
  const int before = (int)P_PY * line + (int)P_PX;
  const int range = (KH - 1) * DY * line + (KW - 1) * DX, more = (range + 63) / 64;

  if (threadIdx.x == 0) {
    for (int i = 0; i < SLABS; i++) {
      expect(full + i * 8, 128);
      expect(empty + i * 8, 4);
    }
  }
  __syncthreads();

  if (group == GROUPS) {
    if (TAKEN) keep_registers<$KEPT$>();
    // A pixel for each READERS threads; those that are left over have none, and arrive only.
    enum { AT_ONCE = 128 / READERS };
    const int first = thread < AT_ONCE * READERS ? thread / READERS : 64, lane = thread % READERS;
    for (int slab = 0, place = 0, round = 0; slab < tiles + more; slab++) {
      if (slab >= SLABS) wait(empty + place * 8, round - 1);
      #pragma unroll 2
      for (int i = first; i < 64; i += AT_ONCE) {
        const int at = begin - before + slab * 64 + i;
        const int image = at / plane, in_image = at - image * plane;
        const int row = in_image / line, column = in_image - row * line;
        const bool inside = at >= 0 && image < (int)P_batch && row < (int)P_H && column < (int)P_W;
        const T *from = inside ? x + image * P_image + row * P_row + column * P_pixel : x;
        const unsigned int to = ring + (place * 64 + i) * 16 * CHUNKS;
        #pragma unroll
        for (int j = lane; j < C8; j += READERS) {
          const unsigned int chunk = to + j / CHUNKS * PITCH + j % CHUNKS * 16;
          copy(swizzled<CHUNKS>(chunk), from + j * 8, inside);
          if (place == 0)
            copy(swizzled<CHUNKS>(chunk + RING * 16 * CHUNKS), from + j * 8, inside);
        }
      }
      arrive_with_copies(full + place * 8);
      if (++place == SLABS) place = 0, round++;
    }
    copies_end();
    return;
  }

  if (TAKEN) take_registers<TAKEN>();
  // Filters: all taps and channels of N of them, 8 filters by 8 channels after the other.  A warp
  // takes 8 filters by 4 chunks at a time, which lie on different banks.
  enum { FOURS = (PRODUCTS + 3) / 4 };
  for (int i = threadIdx.x; i < FOURS * N * 4; i += GROUPS * 128) {
    const int q = (i >> 5) % FOURS * 4 + (i >> 3 & 3), n = (i >> 5) / FOURS * 8 + (i & 7);
    const int across = q / C8 % KW, tap = q / C8 / KW * KW + across;
    const bool inside = n0 + n < filters;
    const T *from = inside ? w + (((n0 + n) * KH * KW + tap) * C8 + q % C8) * 8 : w;
    if (q < PRODUCTS) copy(shared + (q * N + n) * 16, from, inside);
  }
  if (threadIdx.x < ZEROS / 16) copy(zeros + threadIdx.x * 16, w, false);
$SUMS_VECTORS$
  copies_end();
  written();
  meet(1, GROUPS * 128);

  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  Turned *const turned = (Turned *)(md_shared + (zeros - begins) + ZEROS) + warp * 16 * TURN;
  const int n = n0 + lane % LANES * 8;
  const bool some = n < filters, writes = some && lane < ROWS * LANES;
$VECTORS$
$SUMS_BEGIN$
  int ready = 0;  // the slab that is waited for next
  for (int tile = group; tile < tiles; tile += GROUPS) {
    // Slabs before the tile's may have been loaded anew.
    for (ready = max(ready, tile); ready <= tile + more; ready++)
      wait(full + ready % SLABS * 8, ready / SLABS);
    written();
    float c[N / 2];
    #pragma unroll
    for (int i = 0; i < N / 2; i++) c[i] = 0.0f;
    const int start = tile % SLABS * 64;
    products_begin();
    #pragma unroll
    for (int tap = 0; tap < KH * KW; tap++) {
      int slot = start + tap / KW * DY * line + tap % KW * DX;
      if (slot >= RING) slot -= RING;
      const unsigned int pixels = ring + slot * 16 * CHUNKS, taps = shared + tap * C8 * N * 16;
      #pragma unroll
      for (int j = 0; j < C8 - 1; j += 2) {
        const unsigned int at = pixels + j / CHUNKS * PITCH + j % CHUNKS * 16;
        const unsigned long long a = CHUNKS == 1 ? matrix(at, PITCH) : rows<CHUNKS>(at);
        multiply<T>(c, a, matrix(taps + j * N * 16, N * 16), tap + j > 0);
      }
      if (C8 % 2 && tap % KW % 2 == 0) {
        const unsigned int at = pixels + (C8 - 1) * PITCH, filter = taps + (C8 - 1) * N * 16;
        const bool alone = tap % KW == KW - 1;
        multiply<T>(c, matrix(at, alone ? zeros - at : DX * 16),
                    matrix(filter, alone ? zeros - filter : C8 * N * 16), tap + C8 > 1);
      }
    }
    products_commit();
    // A thread looks where one of its warp's sixteen pixels goes, and tells those that write it;
    // there are none between rows, nor between images.
    const int at = begin + tile * 64 + (warp & 3) * 16 + (lane & 15);
    const int image = at / plane, in_image = at - image * plane;
    const int down = in_image / line, across = in_image - down * line;
    const bool there = down < (int)P_rows && across < (int)P_columns && image < (int)P_batch;
    const int place = there ? (image * (int)P_rows + down) * (int)P_columns + across : -1;
    auto pixel = [&](int j) {  // less than 0: there is nothing to write
      const int row = lane / LANES + j * ROWS, found = __shfl_sync(0xffffffffu, place, row & 15);
      return writes && row < 16 ? found : -1;
    };
$ASK$
    products_end(c);
    if (lane == 0) arrive(empty + tile % SLABS * 8);

    // Each warp turns its sixteen results, so that threads write whole chunks of 16 bytes.
$RESULTS$
    $JOIN$
  }
$SUMS_END$
}
}  // namespace halo_$NAME$
