/* Three callers share a pool of four threads; each region reads what the one before wrote.  Then
 * the same with the threads of a team.  Built with -fsanitize=thread by test_races.py.  Ends with
 * status 1 when a result is wrong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "md_runner.h"
#include "team.h"

#define N 4096
typedef struct {
  unsigned a[N], b[N];
} buffers;

typedef struct {
  md_pool *pool;
  buffers *own, *expected;
  int round;
} run;

static int failed;

static void forth(void *argument, int thread, int32_t begin, int32_t end) {
  buffers *own = argument;
  (void)thread;
  for (int32_t i = begin; i < end; i++) own->b[i] = own->a[(i * 5 + 3) % N] + 1;
}
static void back(void *argument, int thread, int32_t begin, int32_t end) {
  buffers *own = argument;
  (void)thread;
  for (int32_t i = begin; i < end; i++) own->a[i] += own->b[(i * 7 + 1) % N];
}

static void regions(void *argument) {
  const run *now = argument;
  for (int k = 0; k < 10; k++) {
    const int tasks = 1 + (now->round * 37 + k * 411) % N, grain = 1 + now->round % 50;
    md_pool_parallel(now->pool, forth, now->own, N, 64);
    md_pool_parallel(now->pool, back, now->own, tasks, grain);
    forth(now->expected, 0, 0, N);
    back(now->expected, 0, 0, tasks);
  }
}

static void *caller(void *pool) {
  buffers *own = calloc(2, sizeof *own);
  run now = {pool, own, own + 1, 0};
  for (; now.round < 80; now.round++) {
    md_pool_run(pool, regions, &now);
    if (now.round % 3 == 0) md_pool_rest(pool);
    if (now.round % 20 == 0) usleep(1000);
  }
  if (memcmp(own, own + 1, sizeof *own)) failed = 1;
  free(own);
  return NULL;
}

static void share(md_pool *pool) {
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, caller, pool);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  md_pool_stop(pool);
  caller(pool);
  md_pool_free(pool);
}

int main(void) {
  share(md_pool_new(4, 2000, NULL));
  share(md_pool_new(4, 2000, team));
  puts(failed ? "wrong" : "right");
  return failed;
}
