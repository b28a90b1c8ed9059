// CUDA's words for a C++ compiler: each thread of a block is a fiber that yields at barriers.
//
// Clusters of blocks run one after the other.  Between two meetings of a cluster its blocks run one
// after the other, between two barriers the threads of a block do, in an order that the caller
// chooses, so that a missing barrier or meeting shows up as another result.  In one order copies to
// shared memory are made at once, in the other when they are waited for: so what does not wait for
// them shows up, too.
//
// It stands before every text and includes little: C++'s own headers take longer to read than most
// kernels to compile.
#include <stddef.h>
#include <string.h>

extern "C" {
void abort(void);
void free(void *);
int posix_memalign(void **, size_t, size_t);
float fabsf(float), floorf(float), fmaf(float, float, float), rintf(float), sqrtf(float),
      exp2f(float);
double fma(double, double, double);
long long llabs(long long);
}

#ifndef __x86_64__
#error "the emulator switches between threads by the calling convention of Linux on x86-64"
#endif

#define __CUDA_EMULATED__ 1
#define __global__
#define __device__
#define __constant__
// Blocks run one after the other.  Shared memory whose size the launch says: MD_SHARED.
#define __shared__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define MD_FUNCTION static inline
#define MD_METHOD
#define MD_SHARED unsigned char *const md_shared = emulator.shared

// A texture is the address of its numbers and of how many there are; outside is 0.
typedef unsigned long long cudaTextureObject_t;
struct Texture { const float *numbers; long long count; };
template <class T> static inline T tex1Dfetch(cudaTextureObject_t texture, int at) {
  const Texture &one = *(const Texture *)texture;
  return at >= 0 && at < one.count ? one.numbers[at] : 0.0f;
}
template <class T> static inline T __ldg(const T *p) { return *p; }

struct uint2 { unsigned int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct Index { unsigned int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

enum State { RUNNING, AT_WARP, AT_BLOCK, AT_CLUSTER, SPINNING, DONE };

struct Fiber {
  void *stack;  // its top while the fiber does not run: six registers, and where to go on
  State state;
  bool reads_no_more;  // of other blocks, until it leaves them
};
// Of a block, and of a cluster, whose blocks begin with a warp each.
const unsigned int MOST_OF_BLOCK = 1024, MOST_THREADS = 2048, MOST_BLOCKS = 8;
const unsigned int STACK_BYTES = 64 << 10, PIECES = (256 << 10) / 16;
// Bytes on both sides of shared memory, which is aligned to 16 bytes and to no more.
const unsigned int MARGIN = 4096 + 16;

// A copy to shared memory that was asked for; nothing is read where ``from`` is null.  Those that
// no queue holds are made early, as any may be.
struct Copy { void *to; const void *from; unsigned int bytes, group; };
struct Copies {
  unsigned int made, asked, groups;  // so many of them, and groups that are complete
  Copy queue[1024];
};
static Copies emulated_copies[MOST_THREADS];

// A block of the cluster that runs.
struct Block {
  Index index;
  unsigned int first, past;    // its fibers
  unsigned char *begin, *end;  // shared memory and its margins
  unsigned short copiers[PIECES];  // 1 + who copied to 16 bytes of shared memory, 0: nobody
};

struct Emulator {
  bool late = false;  // whether copies are made when they are waited for
  Block blocks[MOST_BLOCKS];
  unsigned int cluster = 0;  // so many of them
  Block *block = nullptr;    // the one that runs
  unsigned char *shared = nullptr;  // its shared memory
  void *main = nullptr;
  Fiber fibers[MOST_THREADS];
  unsigned int current = 0;
  void (*kernel)(void **) = nullptr;
  void **arguments = nullptr;
  unsigned long long exchanged[MOST_THREADS];
  bool progress = false;  // whether something was done that a waiting thread may wait for
};
static Emulator emulator;

// Leaves one stack for another: what a function must not change lies on the one that is left.  C's
// swapcontext does the same and asks the system for the signal mask each time, which took most of
// a test's time.
extern "C" __attribute__((visibility("hidden"))) void emulated_switch(void **left, void *entered);
asm(R"(
  .pushsection .text
  .hidden emulated_switch
  .globl emulated_switch
  .type emulated_switch, @function
emulated_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size emulated_switch, . - emulated_switch
  .popsection
)");

static void yield_as(State state) {
  Fiber &fiber = emulator.fibers[emulator.current];
  fiber.state = state;
  emulated_switch(&fiber.stack, emulator.main);
}
// A thread that waits for what others will write: it looks again when they have run.
static inline void spin() { yield_as(SPINNING); }
static inline void __syncthreads() { yield_as(AT_BLOCK); }
static inline void __syncwarp(unsigned int = 0xffffffffu) { yield_as(AT_WARP); }
static inline void md_sync_warp() { __syncwarp(); }
static inline void md_cluster_meet() { yield_as(AT_CLUSTER); }
static inline void md_cluster_done() {
  emulator.fibers[emulator.current].reads_no_more = true;
  __syncwarp();
}
static inline void md_cluster_leave() {
  yield_as(AT_CLUSTER);
  emulator.fibers[emulator.current].reads_no_more = false;
}
// NaN where the other block may have gone on.
template <int N> static inline void md_load_of(float (&x)[N], const float *p, int block) {
  static_assert(N % 4 == 0, "whole vectors");
  const size_t at = (const unsigned char *)p - emulator.block->begin;
  const size_t size = emulator.block->end - emulator.block->begin;
  if ((size_t)p % 16 || at >= size || (unsigned int)block >= emulator.cluster) abort();
  if (emulator.fibers[emulator.current].reads_no_more) memset(x, 0xff, sizeof(x));
  else memcpy(x, emulator.blocks[block].begin + at, sizeof(x));
}
template <class T> static inline T emulated_exchange(T x, unsigned int lane) {
  static_assert(sizeof(T) <= 8, "what a warp exchanges at once");
  unsigned long long bits = 0;
  memcpy(&bits, &x, sizeof(T));
  const unsigned int me = emulator.current;
  emulator.exchanged[me] = bits;
  __syncwarp();
  bits = emulator.exchanged[(me & ~31u) + (lane < 32 ? lane : (me & 31u))];
  __syncwarp();
  memcpy(&x, &bits, sizeof(T));
  return x;
}
template <class T> static inline T __shfl_sync(unsigned int, T x, unsigned int lane) {
  return emulated_exchange(x, lane);
}
template <class T> static inline T __shfl_up_sync(unsigned int, T x, unsigned int by) {
  const unsigned int lane = threadIdx.x & 31u;
  return emulated_exchange(x, lane >= by ? lane - by : lane);
}
template <class T> static inline T __shfl_down_sync(unsigned int, T x, unsigned int by) {
  const unsigned int lane = threadIdx.x & 31u;
  return emulated_exchange(x, lane + by < 32 ? lane + by : lane);
}
template <class T> static inline T __shfl_xor_sync(unsigned int, T x, unsigned int by) {
  return emulated_exchange(x, (threadIdx.x & 31u) ^ by);
}

static void fiber_main() {
  emulator.kernel(emulator.arguments);
  yield_as(DONE);
}

static unsigned int count(unsigned int first, unsigned int past, State state) {
  unsigned int there = 0;
  for (unsigned int i = first; i < past; i++) there += emulator.fibers[i].state == state;
  return there;
}
// Those that wait in a state go on; tells how many.
static unsigned int resume(unsigned int first, unsigned int past, State state) {
  unsigned int there = 0;
  for (unsigned int i = first; i < past; i++) {
    if (emulator.fibers[i].state != state) continue;
    emulator.fibers[i].state = RUNNING;
    there++;
  }
  return there;
}

// Runs every fiber of a warp that may run.
static void run_warp(unsigned int first, unsigned int past, bool backwards) {
  for (unsigned int i = first; i < past; i++) {
    const unsigned int at = backwards ? past - 1 - (i - first) : i;
    Fiber &fiber = emulator.fibers[at];
    if (fiber.state != RUNNING) continue;
    emulator.current = at;
    const unsigned int thread = at - emulator.block->first, row = thread / blockDim.x;
    threadIdx = {thread % blockDim.x, row % blockDim.y, row / blockDim.y};
    emulated_switch(&emulator.main, fiber.stack);
  }
}

// Runs a block until its threads ended or wait for other blocks.  0, or what is wrong: 1 a thread
// ended or waits elsewhere while others wait at a barrier, 3 all wait for ever.
static int run_block(Block &block, bool backwards) {
  const unsigned int begin = block.first, end = block.past, warps = (end - begin + 31) / 32;
  emulator.block = &block;
  emulator.shared = block.begin + MARGIN;
  blockIdx = block.index;
  for (unsigned int idle = 0; idle < 1000; backwards = !backwards) {
    for (unsigned int i = 0; i < warps; i++) {
      const unsigned int first = begin + (backwards ? warps - 1 - i : i) * 32;
      const unsigned int past = first + 32 < end ? first + 32 : end;
      for (;;) {
        run_warp(first, past, backwards);
        if (count(first, past, SPINNING)) break;
        const unsigned int waiting = resume(first, past, AT_WARP);
        if (!waiting) break;
        if (waiting != past - first) return 1;
      }
    }
    if (resume(begin, end, SPINNING)) {
      idle = emulator.progress ? 0 : idle + 1;
      emulator.progress = false;
      continue;
    }
    const State state = emulator.fibers[begin].state;
    if (count(begin, end, state) != end - begin) return 1;
    if (state != AT_BLOCK) return 0;
    resume(begin, end, AT_BLOCK);
  }
  return 3;
}

static void begin_block(Block &block, unsigned char *stacks) {
  for (unsigned int i = block.first; i < block.past; i++) {
    // As if fiber_main had been called: above its address lies the one that it would return to.
    void **top = (void **)(stacks + (size_t)(i + 1) * STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof(void *));
    top[6] = (void *)fiber_main;
    emulator.fibers[i] = {top, RUNNING, false};
    Copies &copies = emulated_copies[i];
    copies.made = copies.asked = copies.groups = 0;
  }
  memset(block.copiers, 0, sizeof(block.copiers));
}

// Tells whether the margins are whole.  What others still read of the block is NaN from now on, and
// so is what the next one in its place begins with.
static bool end_block(Block &block) {
  // All bytes of a margin are like the first: C's library compares many at once.
  const unsigned char *const margins[] = {block.begin, block.end - MARGIN};
  for (const unsigned char *margin : margins)
    if (*margin != 0xff || memcmp(margin, margin + 1, MARGIN - 1)) return false;
  memset(block.begin, 0xff, block.end - block.begin);
  return true;
}

// 0, or what is wrong, as run_block says; 2 something was written beside shared memory.
static int run_cluster(bool backwards) {
  for (;; backwards = !backwards) {
    unsigned int waiting = 0;
    for (unsigned int i = 0; i < emulator.cluster; i++) {
      Block &block = emulator.blocks[backwards ? emulator.cluster - 1 - i : i];
      if (const int wrong = run_block(block, backwards)) return wrong;
      if (emulator.fibers[block.first].state == AT_CLUSTER) waiting++;
      else if (!end_block(block)) return 2;
    }
    if (!waiting) return 0;
    if (waiting != emulator.cluster) return 1;
    for (unsigned int i = 0; i < emulator.cluster; i++)
      resume(emulator.blocks[i].first, emulator.blocks[i].past, AT_CLUSTER);
  }
}

// Runs a kernel of which so many blocks make a cluster.  Shared memory holds NaN before each block
// and after it, and nothing may be written beside it.
extern "C" int emulate(void (*kernel)(void **), void **arguments, const unsigned int *grid,
                       const unsigned int *block, unsigned int shared_bytes, unsigned int cluster,
                       int backwards) {
  const unsigned int threads = block[0] * block[1] * block[2];
  const unsigned int whole_warps = (threads + 31) / 32 * 32, fibers = whole_warps * cluster;
  if (threads > MOST_OF_BLOCK || fibers > MOST_THREADS || cluster > MOST_BLOCKS) return 4;
  if (shared_bytes > PIECES * 16) return 4;
  if (grid[0] % cluster) return 6;
  const size_t size = shared_bytes + 2 * MARGIN, apart = (size + 4095) / 4096 * 4096;
  void *memory;  // the stacks, and shared memory between its margins
  if (posix_memalign(&memory, 4096, (size_t)fibers * STACK_BYTES + cluster * apart)) return 5;
  unsigned char *const stacks = (unsigned char *)memory;
  unsigned char *const shared = stacks + (size_t)fibers * STACK_BYTES;
  memset(shared, 0xff, cluster * apart);
  emulator.kernel = kernel;
  emulator.arguments = arguments;
  emulator.late = backwards;
  emulator.cluster = cluster;
  blockDim = {block[0], block[1], block[2]};
  gridDim = {grid[0], grid[1], grid[2]};
  int wrong = 0;
  const unsigned int blocks = grid[0] * grid[1] * grid[2];
  for (unsigned int i = 0; i < blocks && !wrong; i += cluster) {
    for (unsigned int k = 0; k < cluster; k++) {
      Block &block = emulator.blocks[k];
      block.index = {(i + k) % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
      block.first = k * whole_warps;
      block.past = block.first + threads;
      block.begin = shared + k * apart;
      block.end = block.begin + size;
      begin_block(block, stacks);
    }
    wrong = run_cluster(backwards);
  }
  free(memory);
  return wrong;
}

static void emulated_copy(const Copy &copy) {
  if (copy.from) memcpy(copy.to, copy.from, copy.bytes);
  else memset(copy.to, 0, copy.bytes);
}
// Makes the copies of this thread's first groups, in the order in which they were asked for.
static void emulated_copies_until(unsigned int group) {
  Copies &copies = emulated_copies[emulator.current];
  for (; copies.made != copies.asked; copies.made++) {
    const Copy &copy = copies.queue[copies.made % 1024];
    if (copy.group >= group) break;
    emulated_copy(copy);
  }
}
template <int Bytes> static inline void md_copy_if(void *to, const void *from, bool some) {
  if ((size_t)to % Bytes || (some && (size_t)from % Bytes)) abort();
  Copies &copies = emulated_copies[emulator.current];
  const Copy copy = {to, some ? from : nullptr, Bytes, copies.groups};
  if (!emulator.late) return emulated_copy(copy);
  if (copies.asked - copies.made == 1024) emulated_copy(copies.queue[copies.made++ % 1024]);
  copies.queue[copies.asked++ % 1024] = copy;
}
template <int Bytes> static inline void md_copy(void *to, const void *from) {
  md_copy_if<Bytes>(to, from, true);
}
static inline void md_copy_commit() { emulated_copies[emulator.current].groups++; }
static inline void md_copy_wait() { emulated_copies_until(~0u); }
template <unsigned int Groups> static inline void md_copy_wait_but() {
  const unsigned int complete = emulated_copies[emulator.current].groups;
  if (complete > Groups) emulated_copies_until(complete - Groups);
}

MD_FUNCTION unsigned int intbits(float x) {
  unsigned int y;
  memcpy(&y, &x, 4);
  return y;
}
MD_FUNCTION float floatbits(unsigned int x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
MD_FUNCTION int min(int a, int b) { return a < b ? a : b; }
MD_FUNCTION int max(int a, int b) { return a > b ? a : b; }
MD_FUNCTION float md_fma(float a, float b, float c) { return fmaf(a, b, c); }
MD_FUNCTION double md_fma(double a, double b, double c) { return fma(a, b, c); }
MD_FUNCTION float md_max(float a, float b) {
  if (a != a || b != b) return floatbits(0x7fffffff);
  if (a == b) return floatbits(intbits(a) & intbits(b));
  return a > b ? a : b;
}
MD_FUNCTION float md_min(float a, float b) {
  if (a != a || b != b) return floatbits(0x7fffffff);
  if (a == b) return floatbits(intbits(a) | intbits(b));
  return a < b ? a : b;
}
MD_FUNCTION float md_clamp(float x, float least, float most) {
  const float y = x > least ? x : least;
  return y < most ? y : most;
}
MD_FUNCTION unsigned int emulated_byte(float x, float least, float most, int at) {
  return ((unsigned int)(int)md_clamp(x, least, most) & 0xff) << at;
}
MD_FUNCTION unsigned int md_four_unsigned(float a, float b, float c, float d) {
  return emulated_byte(a, 0.0f, 255.0f, 0) | emulated_byte(b, 0.0f, 255.0f, 8)
         | emulated_byte(c, 0.0f, 255.0f, 16) | emulated_byte(d, 0.0f, 255.0f, 24);
}
MD_FUNCTION unsigned int md_four_signed(float a, float b, float c, float d) {
  return emulated_byte(a, -128.0f, 127.0f, 0) | emulated_byte(b, -128.0f, 127.0f, 8)
         | emulated_byte(c, -128.0f, 127.0f, 16) | emulated_byte(d, -128.0f, 127.0f, 24);
}
MD_FUNCTION float md_max_positive(float a, float b) {
  return floatbits(max((int)intbits(a), (int)intbits(b)));
}
MD_FUNCTION float emulated_flush(float x) {
  return fabsf(x) < 0x1p-126f ? floatbits(intbits(x) & 0x80000000) : x;
}
MD_FUNCTION float md_narrow_exp2(float x) { return exp2f(x); }
MD_FUNCTION float md_narrow_div(float a, float b) { return a / b; }
MD_FUNCTION float md_flushed_exp2(float x) { return emulated_flush(exp2f(emulated_flush(x))); }
MD_FUNCTION float md_flushed_inverse(float x) {
  return emulated_flush(1.0f / emulated_flush(x));
}
MD_FUNCTION float md_from_half(unsigned short x) {
  _Float16 y;
  memcpy(&y, &x, 2);
  return (float)y;
}
MD_FUNCTION unsigned short md_to_half(float x) {
  if (x != x) return 0x7fff;
  _Float16 y = (_Float16)x;
  unsigned short z;
  memcpy(&z, &y, 2);
  return z;
}
MD_FUNCTION unsigned short md_to_bf16(float x) {
  if (x != x) return 0x7fff;
  const unsigned int bits = intbits(x);
  return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
MD_FUNCTION void md_write_word(void *p, uint2 x) { *(uint2 *)p = x; }
MD_FUNCTION void md_write_word(void *p, uint4 x) { *(uint4 *)p = x; }
MD_FUNCTION unsigned int md_pair_of_halves(float low, float high) {
  return (unsigned int)md_to_half(high) << 16 | md_to_half(low);
}
MD_FUNCTION unsigned int md_pair_of_bf16s(float low, float high) {
  return (unsigned int)md_to_bf16(high) << 16 | md_to_bf16(low);
}
MD_FUNCTION unsigned int md_max_halves(unsigned int a, unsigned int b) {
  const auto half = [](unsigned int x) { return md_from_half((unsigned short)x); };
  const unsigned int high = md_to_half(md_max(half(a >> 16), half(b >> 16)));
  return high << 16 | md_to_half(md_max(half(a), half(b)));
}
MD_FUNCTION unsigned int md_max_bf16s(unsigned int a, unsigned int b) {
  const unsigned int high = md_to_bf16(md_max(floatbits(a >> 16 << 16), floatbits(b >> 16 << 16)));
  return high << 16 | md_to_bf16(md_max(floatbits(a << 16), floatbits(b << 16)));
}
