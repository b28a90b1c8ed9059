// CUDA's words for a C++ compiler: each thread of a block is a fiber that yields at barriers.
//
// Blocks run one after the other.  Between two barriers the threads of a block run one after the
// other, in an order that the caller chooses, so that a missing barrier shows up as another result.
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <ucontext.h>
#include <vector>

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
  ucontext_t context;
  State state;
  std::vector<char> stack;
};

struct Emulator {
  unsigned char *shared = nullptr;
  ucontext_t main;
  std::vector<Fiber> fibers;
  unsigned int current = 0;
  void (*kernel)(void **) = nullptr;
  void **arguments = nullptr;
  unsigned int exchanged[1024];
  std::map<unsigned char *, unsigned int> copiers;  // who copied to a place of shared memory
  bool progress = false;  // whether something was done that a waiting thread may wait for
};
static Emulator emulator;

static void yield_as(State state) {
  Fiber &fiber = emulator.fibers[emulator.current];
  fiber.state = state;
  swapcontext(&fiber.context, &emulator.main);
}
// A thread that waits for what others will write: it looks again when they have run.
static inline void spin() { yield_as(SPINNING); }
static inline void __syncthreads() { yield_as(AT_BLOCK); }
static inline void __syncwarp(unsigned int = 0xffffffffu) { yield_as(AT_WARP); }
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
  emulator.fibers[emulator.current].state = DONE;
  swapcontext(&emulator.fibers[emulator.current].context, &emulator.main);
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
    swapcontext(&emulator.main, &fiber.context);
  }
  return any;
}

// 0, or what is wrong: 1 a thread ended while others wait at a barrier, 3 all wait for ever.
static int run_block(unsigned int threads, bool backwards) {
  for (unsigned int i = 0; i < threads; i++) {
    Fiber &fiber = emulator.fibers[i];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    fiber.context.uc_link = nullptr;
    fiber.state = RUNNING;
    makecontext(&fiber.context, fiber_main, 0);
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

// Runs a kernel; shared memory holds NaN before each block, and nothing may be written behind it.
extern "C" int emulate(void (*kernel)(void **), void **arguments, const unsigned int *grid,
                       unsigned int threads, unsigned int shared_bytes, int backwards) {
  const unsigned int margin = 4096;
  std::vector<unsigned char> memory(shared_bytes + 2 * margin + 16);
  emulator.shared = memory.data() + margin;
  emulator.shared += (16 - (size_t)emulator.shared % 16) % 16;
  emulator.kernel = kernel;
  emulator.arguments = arguments;
  emulator.fibers.resize(threads);
  for (Fiber &fiber : emulator.fibers) fiber.stack.resize(64 << 10);
  blockDim = {threads, 1, 1};
  gridDim = {grid[0], grid[1], grid[2]};
  for (unsigned int z = 0; z < grid[2]; z++)
    for (unsigned int y = 0; y < grid[1]; y++)
      for (unsigned int x = 0; x < grid[0]; x++) {
        memset(memory.data(), 0xff, memory.size());
        emulator.copiers.clear();
        blockIdx = {x, y, z};
        if (run_block(threads, backwards)) return 1;
        for (const unsigned char *p = memory.data(); p < emulator.shared; p++)
          if (*p != 0xff) return 2;
        for (const unsigned char *p = emulator.shared + shared_bytes;
             p < memory.data() + memory.size(); p++)
          if (*p != 0xff) return 2;
      }
  return 0;
}

template <int Bytes> static inline void md_copy(void *to, const void *from) {
  if ((size_t)to % Bytes || (size_t)from % Bytes) abort();
  memcpy(to, from, Bytes);
}
static inline void md_copy_wait() {}

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
MD_FUNCTION unsigned int md_max_halves(unsigned int a, unsigned int b) {
  const auto half = [](unsigned int x) { return md_from_half((unsigned short)x); };
  const unsigned int high = md_to_half(md_max(half(a >> 16), half(b >> 16)));
  return high << 16 | md_to_half(md_max(half(a), half(b)));
}
MD_FUNCTION unsigned int md_max_bf16s(unsigned int a, unsigned int b) {
  const unsigned int high = md_to_bf16(md_max(floatbits(a >> 16 << 16), floatbits(b >> 16 << 16)));
  return high << 16 | md_to_bf16(md_max(floatbits(a << 16), floatbits(b << 16)));
}
