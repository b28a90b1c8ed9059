/* Walking a program: one native call runs a whole network. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "md_runner.h"
#include "wait.h"

/* What one run needs for itself, so that a program can run several times at once: operand
 * addresses of this run, and scratch memory of each thread. */
struct md_context {
  void **pointers; /* of all operands of all regions */
  void **bases;    /* that `pointers` was computed from */
  int resolved;
  int threads;
  md_memory *scratch; /* of each thread */
  _Atomic int64_t *busy; /* nanoseconds of all threads in each member of a group, when timed */
};

typedef struct {
  const md_program *program;
  const md_region *region;
  md_context *context;
  int timed;
} job;

int md_abi(int64_t sizes[3]) {
  sizes[0] = sizeof(md_operand);
  sizes[1] = sizeof(md_region);
  sizes[2] = sizeof(md_program);
  return MD_ABI;
}

md_context *md_context_new(const md_program *program, int threads, int guarded) {
  const size_t operands = (size_t)program->operand_count, slots = (size_t)program->slot_count;
  md_context *context = calloc(1, sizeof *context);
  if (!context) return NULL;
  context->threads = threads;
  context->pointers = calloc(operands + 1, sizeof(void *));
  context->bases = calloc(slots + 1, sizeof(void *));
  context->scratch = calloc((size_t)threads, sizeof *context->scratch);
  context->busy = calloc((size_t)program->region_count + 1, sizeof *context->busy);
  int failed = !context->pointers || !context->bases || !context->scratch || !context->busy;
  const int mode = guarded ? MD_GUARD_END : MD_PLAIN;
  for (int i = 0; !failed && program->scratch_bytes && i < threads; i++)
    failed = md_memory_new(&context->scratch[i], (size_t)program->scratch_bytes, 64, mode);
  if (!failed) return context;
  md_context_free(context);
  return NULL;
}

void md_context_free(md_context *context) {
  for (int i = 0; context->scratch && i < context->threads; i++)
    md_memory_free(&context->scratch[i]);
  free(context->busy), free(context->scratch), free(context->bases), free(context->pointers);
  free(context);
}

/* Computes operand addresses, unless this context ran on the same buffers the last time. */
static void resolve(const md_program *program, md_context *context, void *const *bases) {
  const size_t size = sizeof(void *) * (size_t)program->slot_count;
  if (context->resolved && !memcmp(context->bases, bases, size)) return;
  memcpy(context->bases, bases, size);
  for (int32_t i = 0; i < program->operand_count; i++) {
    const md_operand *operand = &program->operands[i];
    context->pointers[i] = (char *)bases[operand->slot] + operand->offset;
  }
  context->resolved = 1;
}

static void run_region(void *argument, int thread, int32_t begin, int32_t end) {
  const job *now = argument;
  const md_region *region = now->region;
  region->kernel(now->context->pointers + region->first_operand, begin, end,
                 now->context->scratch[thread].data);
}

static void run_items(void *argument, int thread, int32_t begin, int32_t end) {
  const job *now = argument;
  const md_region *group = now->region;
  md_context *context = now->context;
  void *pointers[MD_MAX_OPERANDS];
  for (int32_t item = begin; item < end; item++) {
    for (int32_t m = 1; m <= group->members; m++) {
      const md_region *region = group + m;
      for (int32_t i = 0; i < region->operands; i++) {
        const md_operand *operand = &now->program->operands[region->first_operand + i];
        pointers[i] = (char *)context->pointers[region->first_operand + i] +
                      item * operand->item_stride + thread * operand->thread_stride;
      }
      if (region->tasks <= 0) continue;
      const int64_t before = now->timed ? md_now_ns() : 0;
      region->kernel(pointers, 0, region->tasks, context->scratch[thread].data);
      if (now->timed)
        atomic_fetch_add(&context->busy[region - now->program->regions], md_now_ns() - before);
    }
  }
}

/* Divides a group's seconds among its members as they kept the threads busy. */
static void share_time(md_context *context, const md_region *group, int32_t row, double *times) {
  int64_t sum = 0;
  for (int32_t m = 1; m <= group->members; m++) sum += atomic_load(&context->busy[row + m]);
  for (int32_t m = 1; m <= group->members; m++) {
    const int64_t own = atomic_exchange(&context->busy[row + m], 0);
    times[row + m] = sum ? times[row] * (double)own / (double)sum : 0;
  }
}

typedef struct {
  md_pool *pool; /* null: the calling thread runs all */
  const md_program *program;
  md_context *context;
  void *const *bases;
  double *times;
} whole;

static void run_all(void *argument) {
  const whole *asked = argument;
  const md_program *program = asked->program;
  md_context *context = asked->context;
  double *times = asked->times;
  resolve(program, context, asked->bases);
  int64_t before = times ? md_now_ns() : 0;
  for (int32_t i = 0; i < program->region_count; i += 1 + program->regions[i].members) {
    const md_region *region = &program->regions[i];
    const md_work work = region->kernel ? run_region : run_items;
    job now = {program, region, context, times != NULL};
    if (asked->pool)
      md_pool_parallel(asked->pool, work, &now, region->tasks, region->grain);
    else if (region->tasks > 0)
      work(&now, 0, 0, region->tasks);
    if (times) {
      const int64_t after = md_now_ns();
      times[i] = (double)(after - before) * 1e-9;
      if (!region->kernel) share_time(context, region, i, times);
      before = after;
    }
  }
}

/* Runs all regions in order.  `times`, when not null, receives the seconds of each region. */
void md_run(md_pool *pool, const md_program *program, md_context *context, void *const *bases,
            double *times) {
#if defined(__x86_64__)
  /* Whatever the calling thread has set (flushing of denormals, rounding), every thread computes
   * in the same mode. */
  const unsigned mode = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(0x1f80);
#endif
  const int alone = md_pool_threads(pool) == 1;
  whole asked = {alone ? NULL : pool, program, context, bases, times};
  if (alone)
    run_all(&asked);
  else
    md_pool_run(pool, run_all, &asked);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(mode);
#endif
}
