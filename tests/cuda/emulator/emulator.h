// CUDA's words for a C++ compiler: each thread of a block is a fiber that yields at barriers.
//
// Blocks run one after the other.  Between two barriers the threads of a block run one after the
// other, in an order that the caller chooses, so that a missing barrier shows up as another result.
// In one order copies to shared memory are made at once, in the other when they are waited for: so
// what does not wait for them shows up, too.
//
// It stands before every text and includes little: C++'s own headers take longer to read than most
// kernels to compile.
#include <stddef.h>
#include <string.h>

extern "C" {
void abort(void);
void free(void *);
int posix_memalign(void **, size_t, size_t);
float fabsf(float), floorf(float), fmaf(float, float, float), rintf(float), sqrtf(float);
double fma(double, double, double);
long long llabs(long long);
}

#ifndef __x86_64__
#error "the emulator switches between threads by the calling convention of Linux on x86-64"
#endif

#define __CUDA_EMULATED__ 1
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define MD_FUNCTION static inline
#define MD_METHOD
#define MD_SHARED unsigned char *const md_shared = emulator.shared

struct uint2 { unsigned int x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct Index { unsigned int x, y, z; };
static Index threadIdx, blockIdx, blockDim, gridDim;

enum State { RUNNING, AT_WARP, AT_BLOCK, SPINNING, DONE };

struct Fiber {
  void *stack;  // its top while the fiber does not run: six registers, and where to go on
  State state;
};
const unsigned int MOST_THREADS = 1024, STACK_BYTES = 64 << 10, PIECES = (256 << 10) / 16;

// A copy to shared memory that was asked for; nothing is read where ``from`` is null.  Those that
// no queue holds are made early, as any may be.
struct Copy { void *to; const void *from; unsigned int bytes, group; };
struct Copies {
  unsigned int made, asked, groups;  // so many of them, and groups that are complete
  Copy queue[1024];
};
static Copies emulated_copies[MOST_THREADS];

struct Emulator {
  bool late = false;  // whether copies are made when they are waited for
  unsigned char *shared = nullptr;
  void *main = nullptr;
  Fiber fibers[MOST_THREADS];
  unsigned int current = 0;
  void (*kernel)(void **) = nullptr;
  void **arguments = nullptr;
  unsigned int exchanged[MOST_THREADS];
  unsigned short copiers[PIECES];  // 1 + who copied to 16 bytes of shared memory, 0: nobody
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
template <class T> static inline T emulated_exchange(T x, unsigned int lane) {
  unsigned int bits;
  memcpy(&bits, &x, 4);
  const unsigned int me = emulator.current;
  emulator.exchanged[me] = bits;
  __syncwarp();
  bits = emulator.exchanged[(me & ~31u) + (lane < 32 ? lane : (me & 31u))];
  __syncwarp();
  memcpy(&x, &bits, 4);
  return x;
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

// Runs every fiber of a warp that may run; tells whether there was one.
static bool run_warp(unsigned int first, unsigned int past, bool backwards) {
  bool any = false;
  for (unsigned int i = first; i < past; i++) {
    const unsigned int at = backwards ? past - 1 - (i - first) : i;
    Fiber &fiber = emulator.fibers[at];
    if (fiber.state != RUNNING) continue;
    any = true;
    emulator.current = at;
    threadIdx = {at, 0, 0};
    emulated_switch(&emulator.main, fiber.stack);
  }
  return any;
}

// 0, or what is wrong: 1 a thread ended while others wait at a barrier, 3 all wait for ever.
static int run_block(unsigned char *stacks, unsigned int threads, bool backwards) {
  for (unsigned int i = 0; i < threads; i++) {
    // As if fiber_main had been called: above its address lies the one that it would return to.
    void **top = (void **)(stacks + (size_t)(i + 1) * STACK_BYTES) - 8;
    memset(top, 0, 8 * sizeof(void *));
    top[6] = (void *)fiber_main;
    emulator.fibers[i] = {top, RUNNING};
    Copies &copies = emulated_copies[i];
    copies.made = copies.asked = copies.groups = 0;
  }
  const unsigned int warps = (threads + 31) / 32;
  for (unsigned int idle = 0; idle < 1000;) {
    for (unsigned int i = 0; i < warps; i++) {
      const unsigned int warp = backwards ? warps - 1 - i : i;
      const unsigned int first = warp * 32, past = first + 32 < threads ? first + 32 : threads;
      for (;;) {
        run_warp(first, past, backwards);
        unsigned int waiting = 0, spinning = 0;
        for (unsigned int k = first; k < past; k++) {
          waiting += emulator.fibers[k].state == AT_WARP;
          spinning += emulator.fibers[k].state == SPINNING;
        }
        if (!waiting || spinning) break;
        if (waiting != past - first) return 1;
        for (unsigned int k = first; k < past; k++) emulator.fibers[k].state = RUNNING;
      }
    }
    unsigned int spinning = 0;
    for (unsigned int i = 0; i < threads; i++) spinning += emulator.fibers[i].state == SPINNING;
    if (spinning) {
      for (unsigned int i = 0; i < threads; i++)
        if (emulator.fibers[i].state == SPINNING) emulator.fibers[i].state = RUNNING;
      idle = emulator.progress ? 0 : idle + 1;
      emulator.progress = false;
      backwards = !backwards;
      continue;
    }
    unsigned int at_block = 0;
    for (unsigned int i = 0; i < threads; i++) at_block += emulator.fibers[i].state == AT_BLOCK;
    if (!at_block) return 0;
    if (at_block != threads) return 1;
    for (unsigned int i = 0; i < threads; i++) emulator.fibers[i].state = RUNNING;
    backwards = !backwards;
  }
  return 3;
}

// Runs a kernel; shared memory holds NaN before each block, and nothing may be written beside it.
extern "C" int emulate(void (*kernel)(void **), void **arguments, const unsigned int *grid,
                       unsigned int threads, unsigned int shared_bytes, int backwards) {
  if (threads > MOST_THREADS || shared_bytes > PIECES * 16) return 4;
  // Aligned to 16 bytes and to no more.
  const unsigned int margin = 4096 + 16, size = shared_bytes + 2 * margin;
  void *memory;  // the stacks, and shared memory between its margins
  if (posix_memalign(&memory, 4096, (size_t)threads * STACK_BYTES + size)) return 5;
  unsigned char *const stacks = (unsigned char *)memory;
  unsigned char *const begin = stacks + (size_t)threads * STACK_BYTES;
  emulator.shared = begin + margin;
  emulator.kernel = kernel;
  emulator.arguments = arguments;
  emulator.late = backwards;
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], grid[2]};
  int wrong = 0;
  const unsigned int blocks = grid[0] * grid[1] * grid[2];
  for (unsigned int i = 0; i < blocks && !wrong; i++) {
    memset(begin, 0xff, size);
    memset(emulator.copiers, 0, sizeof(emulator.copiers));
    blockIdx = {i % grid[0], i / grid[0] % grid[1], i / grid[0] / grid[1]};
    wrong = run_block(stacks, threads, backwards);
    for (unsigned int k = 0; k < margin && !wrong; k++)
      if (begin[k] != 0xff || begin[size - 1 - k] != 0xff) wrong = 2;
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
MD_FUNCTION float md_max_positive(float a, float b) {
  return floatbits(max((int)intbits(a), (int)intbits(b)));
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
