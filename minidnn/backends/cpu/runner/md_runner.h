/* The native runner: walks a table of regions, with a pool of threads: see
 * docs/explanation/cpu-engine.md.
 *
 * Plain C11 with pthreads.  Python (native.py) mirrors the structures below with ctypes and checks
 * their sizes through md_abi(). */
#ifndef MD_RUNNER_H
#define MD_RUNNER_H

#include <stddef.h>
#include <stdint.h>

#define MD_ABI 1
#define MD_MAX_OPERANDS 1024 /* of a member of a group */

/* A kernel computes tasks begin..end-1.  `scratch` belongs to the calling thread. */
typedef void (*md_kernel)(void *const *pointers, int32_t begin, int32_t end, void *scratch);

/* Where an operand lies: bases[slot] + offset, and inside a group + item * item_stride
 * + thread * thread_stride. */
typedef struct {
  int64_t offset;
  int64_t item_stride;
  int64_t thread_stride;
  int32_t slot;
  int32_t unused;
} md_operand;

/* One region.  A region without kernel is a group: each of its tasks (items) runs the `members`
 * regions that follow, one after another, on the thread that took the item. */
typedef struct {
  md_kernel kernel;
  int32_t first_operand;
  int32_t operands;
  int32_t tasks;
  int32_t grain;
  int32_t members;
  int32_t unused;
} md_region;

typedef struct {
  const md_region *regions;
  const md_operand *operands;
  int32_t region_count;
  int32_t operand_count;
  int32_t slot_count;
  int32_t unused;
  int64_t scratch_bytes; /* of each thread */
} md_program;

typedef struct md_pool md_pool;
typedef struct md_context md_context;

/* Work shared by the threads of a pool. */
typedef void (*md_work)(void *argument, int thread, int32_t begin, int32_t end);
/* A run: calls md_pool_parallel for each of its regions. */
typedef void (*md_job)(void *argument);
/* Has `threads` threads call `body`, the calling one among them, and returns when all have: what
 * OpenMP libraries offer as GOMP_parallel. */
typedef void (*md_team)(void (*body)(void *), void *argument, unsigned threads, unsigned flags);

/* pool.c */
md_pool *md_pool_new(int threads, int64_t spin_ns, md_team team); /* team: null, or whose threads */
void md_pool_stop(md_pool *pool); /* ends the threads; the next run starts them again */
void md_pool_free(md_pool *pool);
int md_pool_threads(const md_pool *pool);
int md_pool_alive(md_pool *pool); /* threads that exist now, the caller's not counted */
void md_pool_run(md_pool *pool, md_job run, void *argument); /* one at a time */
void md_pool_rest(md_pool *pool); /* its threads sleep until the next run */
void md_pool_parallel(md_pool *pool, md_work work, void *argument, int32_t tasks, int32_t grain);

/* program.c */
int md_abi(int64_t sizes[3]);
md_context *md_context_new(const md_program *program, int threads, int guarded);
void md_context_free(md_context *context);
void md_run(md_pool *pool, const md_program *program, md_context *context, void *const *bases,
            double *times);

/* memory.c */
typedef struct {
  void *mapping;
  size_t mapped;
  void *data;
  size_t size;
} md_memory;
enum { MD_PLAIN = 0, MD_GUARD_END = 1, MD_GUARD_START = 2 };
int md_memory_new(md_memory *memory, size_t size, size_t alignment, int mode); /* errno or 0 */
int64_t md_memory_check(const md_memory *memory); /* offset from data of a stray write, or MIN */
void md_memory_free(md_memory *memory);
void md_memory_release(void);

#endif
