// A convolution as a matrix product on tensor cores: pixels by channels of images (channels last)
// times taps of filters.  Printed by tile.py, which says what the names in dollars stand for.
//
// A block makes a tile of BM pixels by BN filters.  Rows of BK products lie in shared memory as
// chunks of 16 bytes, swizzled so that eight rows' chunks never share a bank; STAGES such slabs are
// in flight.  A block makes one tile after another, and loads run ahead into the next.  Where PARTS
// is more than 1, a cluster of so many blocks makes a tile, each the sums of some of its slabs.
namespace tile_$NAME$ {
typedef $T$ T;
enum { BM = $BM$, BN = $BN$, BK = $BK$, WM = $WM$, WN = $WN$, STAGES = $STAGES$ };
enum { PARTS = $PARTS$ };
enum { EACH = 16 / sizeof(T) };  // elements of a chunk
enum { WARPS_N = BN / WN, THREADS = BM / WM * WARPS_N * 32 };
enum { CHUNKS = BK / 8, ROWS = THREADS / CHUNKS, TURNS_A = BM / ROWS };
enum { TURNS_B = (BN + ROWS - 1) / ROWS, STAGE = (BM + BN) * BK * 2 };

MD_FUNCTION int place(int row, int chunk) {
  const int turn = CHUNKS == 8 ? row & 7 : (row >> 1) & 3;
  return (row * CHUNKS + (chunk ^ turn)) * 16;
}

$TURN$
// The tests' emulator has functions of the same names.
#ifdef __CUDACC__
// Starts to copy 16 bytes to shared memory, zeros where `from` is not inside.
template <class> MD_FUNCTION void copy(unsigned int to, const T *from, bool inside) {
  asm volatile("cp.async.$CACHE$ [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

// Sixteen rows of sixteen elements as a warp's registers have them for a product.
MD_FUNCTION void fragments(unsigned int (&r)[4], unsigned int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}

// Sixteen rows by eight columns, of as many products as 32 bytes hold.
template <class>
MD_FUNCTION void multiply($SUM$ (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                          unsigned int b1) {
  asm volatile("mma.sync.aligned.$SHAPE$ "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+$REGISTER$"(c[0]), "+$REGISTER$"(c[1]), "+$REGISTER$"(c[2]), "+$REGISTER$"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

$SCALED$
#endif

extern "C" __global__ void $CLUSTER$__launch_bounds__(THREADS, $BLOCKS$) $NAME$($PARAMETERS$) {
  MD_SHARED;
$HEADER$
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  const int filters = (int)P_filters, products = (int)P_products;
  // This block's part of the slabs: at least one, as there are no more parts than slabs.
  const int part = blockIdx.x % PARTS, step0 = part * (int)P_steps / PARTS;
  const int steps = (part + 1) * (int)P_steps / PARTS - step0;
  const int tiles_n = (filters + BN - 1) / BN;
  const int tiles = (int)((P_pixels + BM - 1) / BM) * tiles_n;
  const int column = thread % CHUNKS, first = thread / CHUNKS;
  const unsigned int shared = (unsigned int)__cvta_generic_to_shared(md_shared);

  // What is loaded next: runs ahead of what is multiplied, through the block's tiles.
  int load_tile = blockIdx.x / PARTS, load_step = 0, load_slot = 0, load_n0 = 0;
$STATE$
  auto begin = [&]() {
    const int m0 = load_tile / tiles_n * BM;  // there are fewer than 2^30 pixels
    load_n0 = load_tile % tiles_n * BN;
$ROWS$
  };
  auto load = [&]() {
    if (load_tile < tiles) {
      const unsigned int slab = shared + load_slot * STAGE;
      const int q = (step0 + load_step) * CHUNKS + column;
      const bool some = q < products;
$TAP$
      #pragma unroll
      for (int i = 0; i < TURNS_A; i++) {
$LOAD$
      }
      #pragma unroll
      for (int i = 0; i < TURNS_B; i++) {
        const int row = first + i * ROWS;
        if (BN % ROWS == 0 || row < BN) {
          const bool inside = some && load_n0 + row < filters;
          const T *from = inside ? w + ((long long)(load_n0 + row) * products + q) * EACH : w;
          copy<T>(slab + BM * BK * 2 + place(row, column), from, inside);
        }
      }
$NEXT$
      load_slot = load_slot + 1 == STAGES ? 0 : load_slot + 1;
      if (++load_step == steps) {
        load_step = 0;
        load_tile += gridDim.x / PARTS;
        if (load_tile < tiles) begin();
      }
    }
    md_copy_commit();
  };

  begin();
  #pragma unroll $AHEAD$
  for (int i = 0; i < STAGES - 1; i++) load();
  const int wm = warp / WARPS_N * WM, wn = warp % WARPS_N * WN;
  int slot = 0;
  for (int tile = blockIdx.x / PARTS; tile < tiles; tile += gridDim.x / PARTS) {
  const long long m0 = tile / tiles_n * (long long)BM;
  const int n0 = tile % tiles_n * BN;
  $SUM$ c[WM / 16][WN / 8][4];
$BEGIN$
  for (int step = 0; step < steps; step++) {
$PROLOGUE_LOADS$
    md_copy_wait_but<STAGES - 2>();
$PROLOGUE$
    __syncthreads();
    load();
    const unsigned int slab = shared + slot * STAGE;
    slot = slot + 1 == STAGES ? 0 : slot + 1;
    #pragma unroll 2
    for (int k = 0; k < BK / 16; k++) {
      unsigned int a[WM / 16][4], b[WN / 16][4];
      #pragma unroll
      for (int i = 0; i < WM / 16; i++)
        fragments(a[i], slab + place(wm + i * 16 + (lane & 15), k * 2 + (lane >> 4)));
      #pragma unroll
      for (int j = 0; j < WN / 16; j++)
        fragments(b[j], slab + BM * BK * 2
                  + place(wn + j * 16 + (lane & 7) + (lane >> 4) * 8, k * 2 + (lane >> 3 & 1)));
      #pragma unroll
      for (int i = 0; i < WM / 16; i++)
        #pragma unroll
        for (int j = 0; j < WN / 16; j++) {
          multiply<T>(c[i][2 * j], a[i], b[j][0], b[j][1]);
          multiply<T>(c[i][2 * j + 1], a[i], b[j][2], b[j][3]);
        }
    }
  }

$RESULTS$
  }
}
}  // namespace tile_$NAME$
