// The gradient of a filter of few input channels on tensor cores, in parts.  Printed by
// small_channels_gradient.py, which says what the names in dollars stand for; it also says how rows of
// the image lie in shared memory.
//
//     dw[filter][tap] = sum over pixels of dy[pixel][filter] * window[pixel][tap]
//
// A block goes over a part of all steps, each DOWN rows of ACROSS pixels of dy, and keeps its sums in
// registers.  Gradients come by cp.async, STAGES steps in flight, [pixel][filter], in chunks of 16
// bytes that are swizzled so that eight pixels' never share a bank.  Rows of the image pass through
// a ring: those of the next step are asked for before this step's products and stored behind them.
// Both are read by ldmatrix.trans, since products sum over pixels.
//
// Warps share filters (by BY_FILTER), chunks of the window (by BY_TAP) and then pixels out.  What is
// left of a chunk behind a window, and of a block's filters behind the last, are columns and rows of
// the sums that nobody reads: what lies there does not matter, but every pixel counts, so pixels
// behind the last are zeros on both sides.
namespace stem_$NAME$ {
typedef $T$ T;
enum { FILTERS = $FILTERS$, BY_FILTER = $BY_FILTER$, BY_TAP = $BY_TAP$, BY_PIXEL = $BY_PIXEL$ };
enum { THREADS = BY_FILTER * BY_TAP * BY_PIXEL * 32, STAGES = $STAGES$, LANES = $LANES$ };
enum { DOWN = $DOWN$, ACROSS = $ACROSS$, COUNTS = ACROSS / 16 };
enum { R = $R$, S = $S$, C = $C$, SY = $SY$, SX = $SX$, WIDE = $WIDE$, CHUNKS = $CHUNKS$ };
enum { STEP = SX * WIDE, COPIES = $COPIES$, PITCH = $PITCH$, ROW = COPIES * PITCH * 2 };
enum { NEEDED = (DOWN - 1) * SY + R, NEW = DOWN * SY, KEPT = NEEDED + NEW };
enum { WINDOW = R * CHUNKS, OWN = (WINDOW + BY_TAP - 1) / BY_TAP, PAIRS = (OWN + 1) / 2 };
enum { SIXTEENS = FILTERS / 16 / BY_FILTER, STAGE = DOWN * ACROSS * FILTERS * 2 };
// Rows pass by items of ITEM pixels, whose numbers are whole words but where neither channels nor
// stride are even.
enum { ITEM = WIDE % 2 && SX % 2 == 0 ? 2 : 1, NUMBERS = ITEM * WIDE, WORDS = (NUMBERS + 1) / 2 };
enum { ITEMS = ((ACROSS - 1) * SX + S + ITEM - 1) / ITEM };
enum { REACHED = (ACROSS - COPIES) * SX + S };  // pixels of a copy
enum { TURNS = (NEW * ITEMS + THREADS - 1) / THREADS };

MD_FUNCTION int place(int pixel, int chunk) {
  enum { EVERY = FILTERS / 8, SHIFT = EVERY == 8 ? 0 : EVERY == 4 ? 1 : 2 };
  return (pixel * EVERY + (chunk ^ ((pixel >> SHIFT) & (EVERY - 1)))) * 16;
}

// The tests' emulator has functions of the same names.
#ifdef __CUDACC__
// Four times eight rows of eight elements, each turned, as a warp's registers have them for a product.
MD_FUNCTION void fragments_turned(unsigned int (&r)[4], unsigned int at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// Starts to copy 16 bytes to shared memory, zeros where `from` is not inside.
template <class> MD_FUNCTION void copy(unsigned int to, const T *from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
template <class>
MD_FUNCTION void multiply(float (&c)[4], const unsigned int (&a)[4], unsigned int b0,
                          unsigned int b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.$PTX$.$PTX$.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, $BLOCKS$) $NAME$($PARAMETERS$) {
  MD_SHARED;
  unsigned char *const ring = md_shared + 16;
  const unsigned int shared = (unsigned int)__cvta_generic_to_shared(md_shared);
  const int thread = threadIdx.x;
  const int filter0 = blockIdx.y * FILTERS, filters = (int)P_filters - filter0;
  const int height = (int)P_height, width = (int)P_width;
  const int row_step = (int)P_row, pixel_step = (int)P_pixel;
  const int dy_row = (int)P_dy_row, dy_pixel = (int)P_dy_pixel;
  const int rows = (int)P_rows, columns = (int)P_columns, segments = (int)P_segments;
  const int steps = (rows + DOWN - 1) / DOWN;  // of a segment, ACROSS columns of an image
  const int begin = (int)(blockIdx.x * P_steps / P_parts);
  const int end = (int)((blockIdx.x + 1) * P_steps / P_parts);
  if (thread < 4) ((unsigned int *)md_shared)[thread] = 0;

  // This thread's number, of which a compiler does not know that it never changes: what follows from
  // it is computed again in each step, for registers belong to sums.
  auto own_number = [&]() {
    int number = thread;
    asm volatile("" : "+r"(number));
    return number;
  };

  // A step: a row of steps in a segment of an image.
  struct Place { int row, segment, image; };
  const auto forward = [&](Place &at) {
    if (++at.row < steps) return;
    at.row = 0;
    if (++at.segment < segments) return;
    at.segment = 0, at.image++;
  };
  Place now = {begin % steps, begin / steps % segments, begin / (steps * segments)}, ahead = now;

  // The gradients of the step `ahead`.
  int left_ahead = end - begin, place_ahead = 0;
  auto load = [&]() {
    if (left_ahead > 0) {
      enum { PARTS = FILTERS / LANES, AT_ONCE = THREADS / PARTS, PIXELS = DOWN * ACROSS };
      const int number = own_number(), filter = number % PARTS * LANES, first = number / PARTS;
      const int row0 = ahead.row * DOWN, column0 = ahead.segment * ACROSS + first;
      const T *const from0 = dy + ahead.image * P_dy_image
                             + (filter0 + filter + row0 * dy_row + column0 * dy_pixel);
      const int stage = 16 + KEPT * ROW + place_ahead * STAGE, to0 = stage + place(first, filter / 8);
      if (filter < filters) {
        #pragma unroll $COPIES_AHEAD$
        for (int i = 0; i < (PIXELS + AT_ONCE - 1) / AT_ONCE; i++) {
          const int pixel = first + i * AT_ONCE;
          if (PIXELS % AT_ONCE && pixel >= PIXELS) break;
          const int down = DOWN == 1 ? 0 : pixel / ACROSS, across = i * AT_ONCE - down * ACROSS;
          const bool inside = (DOWN == 1 || row0 + down < rows) && column0 + across < columns;
          const T *const from = from0 + (down * dy_row + across * dy_pixel);
          // Chunks that lie whole numbers of patterns apart are swizzled alike.
          const int to = AT_ONCE % 8 == 0 ? to0 + i * AT_ONCE * FILTERS * 2
                                          : stage + place(pixel, filter / 8);
          $COPY$
        }
      }
      place_ahead = place_ahead + 1 == STAGES ? 0 : place_ahead + 1;
      left_ahead--;
      forward(ahead);
    }
    md_copy_commit();
  };

  // Item i of the image's rows from `first` on, whose segment begins at column `left`: numbers as
  // they are loaded, since to do anything with them would be to wait for them.
  auto taken = [&](unsigned short (&bits)[ITEM * C], const T *image, int first, int left, int i) {
    const int row = first + i / ITEMS, column = left + i % ITEMS * ITEM;
    const bool there = (unsigned int)row < (unsigned int)height;
    const T *const from = image + (row * row_step + column * pixel_step);
    #pragma unroll
    for (int k = 0; k < ITEM; k++) {
      const bool inside = there && (unsigned int)(column + k) < (unsigned int)width;
      #pragma unroll
      for (int j = 0; j < C; j++) bits[k * C + j] = inside ? from[k * pixel_step + j].bits : 0;
    }
  };
  auto keep = [&](const unsigned short (&bits)[ITEM * C], int slot, int i) {
    unsigned int words[WORDS];
    #pragma unroll
    for (int k = 0; k < WORDS; k++) words[k] = 0;
    #pragma unroll
    for (int k = 0; k < ITEM * C; k++) {
      const int at = k / C * WIDE + k % C;
      words[at / 2] |= (unsigned int)bits[k] << at % 2 * 16;
    }
    slot += i / ITEMS;
    if (slot >= KEPT) slot -= KEPT;
    #pragma unroll
    for (int g = 0; g < COPIES; g++) {
      const int pixel = i % ITEMS * ITEM - g * SX;
      if ((COPIES > 1 && pixel < 0) || pixel >= REACHED) continue;
      unsigned char *const to = ring + slot * ROW + (g * PITCH + pixel * WIDE) * 2;
      if (NUMBERS % 8 == 0) {
        *(uint4 *)to = {words[0], words[1 % WORDS], words[2 % WORDS], words[3 % WORDS]};
      } else if (NUMBERS % 4 == 0) {
        *(uint2 *)to = {words[0], words[1 % WORDS]};
      } else if (NUMBERS % 2 == 0) {
        #pragma unroll
        for (int k = 0; k < WORDS; k++) ((unsigned int *)to)[k] = words[k];
      } else {
        #pragma unroll
        for (int k = 0; k < C; k++) ((T *)to)[k].bits = words[k / 2] >> k % 2 * 16;
      }
    }
  };
  // All rows of a step, to the ring's first places.
  auto whole = [&](const Place &at) {
    const T *const image = x + at.image * P_image;
    const int top = at.row * NEW - (int)P_top, left = at.segment * ACROSS * SX - (int)P_left;
    #pragma unroll 2
    for (int i = own_number(); i < NEEDED * ITEMS; i += THREADS) {
      unsigned short bits[ITEM * C];
      taken(bits, image, top, left, i);
      keep(bits, 0, i);
    }
  };

  float c[SIXTEENS][OWN][4];
  #pragma unroll
  for (int i = 0; i < SIXTEENS; i++)
    #pragma unroll
    for (int j = 0; j < OWN; j++)
      #pragma unroll
      for (int k = 0; k < 4; k++) c[i][j][k] = 0.0f;

  #pragma unroll 1
  for (int i = 0; i < STAGES - 1; i++) load();
  whole(now);
  int slot0 = 0, place0 = 0;  // of a step: where its first row lies, and its gradients
  #pragma unroll 1
  for (int step = begin; step < end; step++) {
    md_copy_wait_but<STAGES - 2>();
    __syncthreads();
    load();
    const bool goes_on = step + 1 < end && now.row + 1 < steps;
    unsigned short held[TURNS][ITEM * C];
    if (goes_on) {
      const T *const image = x + now.image * P_image;
      const int first = now.row * NEW - (int)P_top + NEEDED, number = own_number();
      const int left = now.segment * ACROSS * SX - (int)P_left;
      #pragma unroll
      for (int i = 0; i < TURNS; i++) {
        const int at = number + i * THREADS;
        if (at < NEW * ITEMS) taken(held[i], image, first, left, at);
      }
    }

    // What this lane points to for ldmatrix: of the gradients a pixel's chunk, of the image a
    // window's, the even chunk of a pair or the odd one.
    const int mine = own_number(), odd = mine >> 4 & 1, b_pixel = mine & 15;
    const int a_pixel = (mine & 7) + odd * 8, by_tap = (mine >> 5) / BY_FILTER % BY_TAP;
    const int a_chunk = (mine >> 5) % BY_FILTER * SIXTEENS * 2 + (mine >> 3 & 1);
    const int b_place = b_pixel % COPIES * (PITCH / 8) + b_pixel / COPIES * (COPIES * STEP / 8);
    const int by_pixel = (mine >> 5) / (BY_FILTER * BY_TAP);
    const unsigned int stage = shared + 16 + KEPT * ROW + place0 * STAGE;
    place0 = place0 + 1 == STAGES ? 0 : place0 + 1;
    const int left_over = rows - now.row * DOWN;
    const int there = DOWN == 1 || left_over > DOWN ? DOWN : left_over;
    const int across = columns - now.segment * ACROSS;
    for (int row = 0; row < there; row++) {
      // Where this lane's windows lie, of which it takes one of a pair of chunks: in chunks, two
      // pairs' in a register.
      unsigned int windows[(PAIRS + 1) / 2];
      #pragma unroll
      for (int j = 0; j < PAIRS; j++) {
        int chunk = by_tap * OWN + j * 2 + odd;
        if (chunk >= WINDOW) chunk = WINDOW - 1;
        int slot = slot0 + row * SY + chunk / CHUNKS;
        if (slot >= KEPT) slot -= KEPT;
        const unsigned int at = 1 + slot * (ROW / 16) + b_place + chunk % CHUNKS;
        windows[j / 2] = j % 2 ? windows[j / 2] | at << 16 : at;
      }
      // Sixteen pixels at a time, by all groups of warps in turn through all rows.
      const int first = (by_pixel - (step * DOWN + row) * COUNTS) & (BY_PIXEL - 1);
      #pragma unroll 1
      for (int k = first; k < COUNTS; k += BY_PIXEL) {
        unsigned int a[SIXTEENS][4];
        #pragma unroll
        for (int i = 0; i < SIXTEENS; i++) {
          const int pixel = row * ACROSS + k * 16 + a_pixel;
          fragments_turned(a[i], stage + place(pixel, a_chunk + i * 2));
        }
        const bool inside = k * 16 + b_pixel < across;
        #pragma unroll
        for (int j = 0; j < PAIRS; j++) {
          unsigned int b[4];
          const unsigned int at = (windows[j / 2] >> j % 2 * 16 & 65535) + k * 2 * STEP;
          fragments_turned(b, shared + (inside ? at * 16 : 0));
          #pragma unroll
          for (int i = 0; i < SIXTEENS; i++) {
            multiply<T>(c[i][2 * j], a[i], b[0], b[1]);
            if (2 * j + 1 < OWN) multiply<T>(c[i][2 * j + 1], a[i], b[2], b[3]);
          }
        }
      }
    }

    forward(now);
    if (goes_on) {
      int slot = slot0 + NEEDED;
      if (slot >= KEPT) slot -= KEPT;
      const int number = own_number();
      #pragma unroll
      for (int i = 0; i < TURNS; i++) {
        const int at = number + i * THREADS;
        if (at < NEW * ITEMS) keep(held[i], slot, at);
      }
      slot0 += NEW;
      if (slot0 >= KEPT) slot0 -= KEPT;
    } else if (step + 1 < end) {  // another segment or image
      __syncthreads();
      slot0 = 0;
      whole(now);
    }
  }

  // The warps that shared pixels out add up their sums, one after the other.
  md_copy_wait();
  float *const sums = (float *)md_shared;
  const int lane = thread & 31, warp = thread >> 5;
  const int by_pixel = warp / (BY_FILTER * BY_TAP), by_tap = warp / BY_FILTER % BY_TAP;
  #pragma unroll 1
  for (int turn = 0; turn < BY_PIXEL; turn++) {
    __syncthreads();
    if (turn != by_pixel) continue;
    #pragma unroll
    for (int i = 0; i < SIXTEENS; i++)
      #pragma unroll
      for (int j = 0; j < OWN; j++) {
        if (by_tap * OWN + j >= WINDOW) continue;
        #pragma unroll
        for (int half = 0; half < 2; half++) {
          const int filter = (warp % BY_FILTER * SIXTEENS + i) * 16 + half * 8 + lane / 4;
          const int column = (by_tap * OWN + j) * 8 + lane % 4 * 2;
          float2 *const to = (float2 *)(sums + filter * (WINDOW * 8) + column);
          float2 sum = make_float2(c[i][j][half * 2], c[i][j][half * 2 + 1]);
          if (turn > 0) sum.x += to->x, sum.y += to->y;
          *to = sum;
        }
      }
  }
  __syncthreads();
  enum { TAPS = R * S * C };
  const int made = filters < FILTERS ? filters : FILTERS;
  float *const part = parts + (blockIdx.x * P_filters + filter0) * TAPS;
  for (int i = thread; i < made * TAPS; i += THREADS) {
    const int tap = i % TAPS, across = tap / C % S;
    const int column = tap / (S * C) * CHUNKS * 8 + across * WIDE + tap % C;
    part[i] = sums[i / TAPS * (WINDOW * 8) + column];
  }
}
}  // namespace stem_$NAME$
