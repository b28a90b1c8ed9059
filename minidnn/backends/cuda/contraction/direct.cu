// A convolution in exact float32 as a matrix product: filters by taps of channels, times taps of
// channels by pixels, which are gathered from planar images as they are read.
//
// A block makes BM filters by BN pixels of one part of the sum, a thread RM x RN of them in groups of
// four, from slabs of 16 products in shared memory, while the next slabs are on their way there.
namespace direct_$NAME$ {
$MULTIPLY$
extern "C" __global__ void __launch_bounds__($THREADS$, 512 / $THREADS$) $NAME$($PARAMETERS$) {
  constexpr int BM = $BM$, BN = $BN$, RM = $RM$, RN = $RN$, TX = BN / RN, TY = BM / RM;
  constexpr int THREADS = TX * TY, DEEP = 16, LINE = BM + 4, SLAB = DEEP * (LINE + BN), STAGES = $STAGES$;
  constexpr int STEP = THREADS / BN;  // products, between two that a thread loads of its pixel
  MD_SHARED;
  float *const slabs = (float *)md_shared;
  const int thread = threadIdx.x;
  const int tx = first_column<TX>(thread), ty = first_row<TX>(thread);
  const int groups = (int)P_groups, filters = (int)P_filters, products = (int)P_products;
  const int pixels = (int)P_pixels, plane = (int)P_plane, channel = (int)P_channel;
  const int k0 = (int)(blockIdx.x % groups) * BM, m0 = (int)(blockIdx.x / groups) * BN;
  const int begin = (int)blockIdx.y * (int)P_depth;
  const int end = min(begin + (int)P_depth, products);

  // The pixel that this thread loads: a bit for each row of taps inside the image, and 16 bits
  // higher for each column.
  const int own = thread % BN, first = thread / BN;
  unsigned int inside = 0;
  const float *from = x;
  if (m0 + own < pixels) {
    const int n = (m0 + own) / plane, p = m0 + own - n * plane, columns = (int)P_columns;
    const int top = p / columns * (int)P_down - (int)P_top;
    const int left = p % columns * (int)P_across - (int)P_left;
    from += n * P_image + top * P_row + left;
$INSIDE$
  }
$TAPS$
  const auto load = [&](int at, float *slab) {
    const int left = end - at;
$ENTRIES$
    #pragma unroll
    for (int i = 0; i < DEEP / STEP; i++) {
      const int k = first + i * STEP;
$TAP$
      md_copy_if<4>(slab + DEEP * LINE + k * BN + (own ^ 1), source, some);
    }
    // Filter by filter, eight of whose products neighbouring lanes take.
    const float *filter = w + (k0 + thread / 8) * (long long)products + at + thread % 8;
    float *const to = slab + thread % 8 * LINE + thread / 8;
    const int row = k0 + thread / 8;
    #pragma unroll 2
    for (int i = 0; i < BM; i += THREADS / 8, filter += THREADS / 8 * (long long)products) {
      md_copy_if<4>(to + i, filter, row + i < filters && thread % 8 < left);
      md_copy_if<4>(to + 8 * LINE + i, filter + 8, row + i < filters && thread % 8 + 8 < left);
    }
  };

  float sum[RM][RN];
  #pragma unroll
  for (int i = 0; i < RM * RN; i++) sum[i / RN][i % RN] = 0.0f;
$FIRST$
  #pragma unroll
  for (int i = 0; i < STAGES - 1; i++) {
    if (begin + i * DEEP < end) load(begin + i * DEEP, slabs + i * SLAB);
    md_copy_commit();
  }
  int slot = 0;
  #pragma unroll 1
  for (int at = begin; at < end; at += DEEP) {
    md_copy_wait_but<STAGES - 2>();
$BEFORE$
    __syncthreads();
    const int next = at + (STAGES - 1) * DEEP;
    if (next < end) load(next, slabs + (slot == 0 ? STAGES - 1 : slot - 1) * SLAB);
    md_copy_commit();
$NEXT$
    const float *const left = slabs + slot * SLAB + ty;
    const float *const right = slabs + slot * SLAB + DEEP * LINE + tx;
    multiply<DEEP, TX, TY, LINE, BN>(sum, left, right);
    slot = slot + 1 == STAGES ? 0 : slot + 1;
  }
$RESULTS$
}
}  // namespace direct_$NAME$
