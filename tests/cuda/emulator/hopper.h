// Instructions of kernels for tensor cores: the functions of contraction/hopper.cu and tile.cu on
// the emulator's shared memory.
//
// Products are made when they are asked for: what must wait for them is not tested so, but who waits
// at which barrier is, and where everything lies.

// Kernels spend their time here: this is compiled well whatever they are compiled with.
#pragma GCC push_options
#pragma GCC optimize("O1")

// Where shared memory begins for those who see addresses: not where a swizzle's pattern does.
static const unsigned int SHARED_BEGINS = 1040;

static inline unsigned int __cvta_generic_to_shared(const void *p) {
  return (unsigned int)((const unsigned char *)p - emulator.shared) + SHARED_BEGINS;
}
static inline unsigned char *emulated_shared(unsigned int at) {
  return emulator.shared + (at - SHARED_BEGINS);
}

// One thread alone copies to a place: others would write there without waiting for each other.
template <class T> static inline void copy(unsigned int to, const T *from, bool inside) {
  unsigned char *at = emulated_shared(to);
  if ((size_t)at % 16 || (size_t)from % 16) abort();
  unsigned short &copier = emulator.block->copiers[(at - emulator.shared) / 16];
  if (copier == 0) copier = (unsigned short)(emulator.current + 1);
  if (copier != emulator.current + 1) abort();
  md_copy_if<16>(at, from, inside);
}
static inline float two_to(float x) { return exp2f(x); }
static inline float2 pair(unsigned int at) {
  return *(const float2 *)emulated_shared(at);
}
static inline uint4 asked(const void *from, bool inside) {
  uint4 x;
  memset(&x, 0xff, sizeof(x));
  if ((size_t)from % 16 && inside) abort();
  return inside ? *(const uint4 *)from : x;
}
static inline void copies_end() { md_copy_wait(); }

// Arrivals that are expected, those still missing, and how often all were there.
struct Barrier { unsigned short expected, missing; unsigned int rounds; };
static inline Barrier *emulated_barrier(unsigned int at) {
  if (at % 8) abort();
  return (Barrier *)emulated_shared(at);
}
static inline void expect(unsigned int barrier, int arrivals) {
  *emulated_barrier(barrier) = {(unsigned short)arrivals, (unsigned short)arrivals, 0};
}
static inline void arrive(unsigned int barrier) {
  Barrier *b = emulated_barrier(barrier);
  if (b->missing == 0 || b->missing > b->expected) abort();
  emulator.progress = true;
  if (--b->missing == 0) b->missing = b->expected, b->rounds++;
}
static inline void arrive_with_copies(unsigned int barrier) {
  md_copy_wait();
  arrive(barrier);
}
static inline void wait(unsigned int barrier, int round) {
  while ((emulated_barrier(barrier)->rounds & 1) == (round & 1)) spin();
  // A barrier that went on twice looks as if nobody had come.
  if ((int)emulated_barrier(barrier)->rounds > round + 2) abort();
  emulator.progress = true;
}

struct Meeting { int came = 0; unsigned int rounds = 0; };
static Meeting emulated_meetings[MOST_BLOCKS][16];
static inline void meet(int barrier, int threads) {
  Meeting &m = emulated_meetings[emulator.block - emulator.blocks][barrier];
  const unsigned int round = m.rounds;
  emulator.progress = true;
  if (++m.came == threads) m.came = 0, m.rounds++;
  while (m.rounds == round) spin();
}

template <int> static inline void take_registers() {}
template <int> static inline void keep_registers() {}
static inline void written() {}
static inline void products_begin() {}
static inline void products_commit() {}
template <int N> static inline void products_end(float (&)[N]) {}

static inline void fragments(unsigned int (&r)[4], unsigned int at) {
  const unsigned int me = emulator.current;
  emulator.exchanged[me] = at;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    const unsigned int row = emulator.exchanged[(me & ~31u) + i * 8 + (me & 31) / 4];
    if (row % 16) abort();
    memcpy(&r[i], emulated_shared(row + me % 4 * 4), 4);
  }
  __syncwarp();
}

// The same of matrices that are turned: rows become columns.
static inline void fragments_turned(unsigned int (&r)[4], unsigned int at) {
  const unsigned int me = emulator.current;
  emulator.exchanged[me] = at;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    unsigned short halves[2];
    for (int k = 0; k < 2; k++) {
      const unsigned int row = emulator.exchanged[(me & ~31u) + i * 8 + me % 4 * 2 + k];
      if (row % 16) abort();
      memcpy(&halves[k], emulated_shared(row + (me & 31) / 4 * 2), 2);
    }
    r[i] = (unsigned int)halves[1] << 16 | halves[0];
  }
  __syncwarp();
}

// Element (row, k) of a matrix in shared memory, by its descriptor.
static inline unsigned short emulated_element(unsigned long long matrix, int row, int k) {
  const unsigned int start = (matrix & 0x3fff) << 4, mode = (unsigned int)(matrix >> 62);
  const unsigned int lead = (matrix >> 16 & 0x3fff) << 4, stride = (matrix >> 32 & 0x3fff) << 4;
  unsigned int at = start + row / 8 * stride;
  if (mode == 0) {
    at += row % 8 * 16 + k / 8 * lead + k % 8 * 2;
  } else {
    at += row % 8 * (256 >> mode) + k * 2;
    at ^= (at >> 7 & (8 >> (mode - 1)) - 1) << 4;
  }
  unsigned short bits;
  memcpy(&bits, emulated_shared(at), 2);
  return bits;
}
template <class T> static inline float emulated_value(unsigned short bits) {
  T x;
  x.bits = bits;
  return md_value(x);
}
// A thread has two rows, and of each pair of columns both products with both: what is computed most
// of all, so that each number is read and widened once.
template <class T, int N, class Row, class Column>
static inline void emulated_products(float (&c)[N], Row row_of, Column column_of, int add) {
  const int lane = emulator.current & 31, warp = threadIdx.x >> 5 & 3;
  float rows[2][16];
  for (int r = 0; r < 2; r++)
    for (int k = 0; k < 16; k++) rows[r][k] = emulated_value<T>(row_of(warp, lane / 4 + r * 8, k));
  for (int i = 0; i < N; i += 4)
    for (int j = 0; j < 2; j++) {
      float column[16];
      for (int k = 0; k < 16; k++)
        column[k] = emulated_value<T>(column_of(i * 2 + lane % 4 * 2 + j, k));
      for (int r = 0; r < 2; r++) {
        float sum = add ? c[i + r * 2 + j] : 0.0f;
        for (int k = 0; k < 16; k++) sum += rows[r][k] * column[k];
        c[i + r * 2 + j] = sum;
      }
    }
}
template <class T, int N>
static inline void multiply(float (&c)[N], unsigned long long a, unsigned long long b, int add) {
  emulated_products<T>(
      c, [&](int warp, int row, int k) { return emulated_element(a, warp * 16 + row, k); },
      [&](int column, int k) { return emulated_element(b, column, k); }, add);
}

// What the threads of a warp have in COUNT registers each, until they have met again.
template <int COUNT> struct Registers {
  unsigned int (*of)[COUNT];
  explicit Registers(const unsigned int *own) {
    static unsigned int all[MOST_THREADS][COUNT];
    memcpy(all[emulator.current], own, 4 * COUNT);
    __syncwarp();
    of = all + (emulator.current & ~31u);
  }
  ~Registers() { __syncwarp(); }
};
static inline unsigned short emulated_half(unsigned int word, int k) {
  return (unsigned short)(word >> k % 2 * 16);
}
// Element (row, k) of sixteen rows of sixteen elements that lie in a warp's registers.
static inline unsigned short emulated_fragment(const Registers<4> &a, int row, int k) {
  return emulated_half(a.of[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k);
}
template <class T, int N>
static inline void multiply(float (&c)[N], const unsigned int (&own)[4], unsigned long long b,
                            int add) {
  const Registers<4> a(own);
  emulated_products<T>(
      c, [&](int, int row, int k) { return emulated_fragment(a, row, k); },
      [&](int column, int k) { return emulated_element(b, column, k); }, add);
}
template <class T>
static inline void multiply(float (&c)[4], const unsigned int (&own)[4], unsigned int b0,
                            unsigned int b1) {
  const Registers<4> a(own);
  const unsigned int both[2] = {b0, b1};
  const Registers<2> b(both);
  emulated_products<T>(
      c, [&](int, int row, int k) { return emulated_fragment(a, row, k); },
      [&](int column, int k) { return emulated_half(b.of[column * 4 + k % 8 / 2][k / 8], k); }, 1);
}

// Products of bytes: 32 of a row and a column.
template <class T>
static inline void multiply(int (&c)[4], const unsigned int (&own)[4], unsigned int b0,
                            unsigned int b1) {
  const Registers<4> a(own);
  const unsigned int both[2] = {b0, b1};
  const Registers<2> b(both);
  const int lane = emulator.current & 31;
  for (int i = 0; i < 4; i++) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 32; k++) {
      T x;
      x.bits = (unsigned char)(a.of[row % 8 * 4 + k % 16 / 4][row / 8 + k / 16 * 2] >> k % 4 * 8);
      const unsigned int w = b.of[column * 4 + k % 16 / 4][k / 16] >> k % 4 * 8;
      c[i] += (int)x.bits * (int)(signed char)(unsigned char)w;
    }
  }
}
template <class T> static inline int quad(unsigned int a, unsigned int b, int sum) {
  for (int i = 0; i < 32; i += 8) {
    T x;
    x.bits = (unsigned char)(a >> i);
    sum += (int)x.bits * (int)(signed char)(unsigned char)(b >> i);
  }
  return sum;
}

template <class T>
static inline unsigned int scaled(unsigned int x, unsigned int scale, unsigned int shift) {
  unsigned int y = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto value = [&](unsigned int word) {
      return emulated_value<T>((unsigned short)(word >> i));
    };
    T one;
    md_set(one, md_max(fmaf(value(x), value(scale), value(shift)), 0.0f));
    y |= (unsigned int)one.bits << i;
  }
  return y;
}

#pragma GCC pop_options
