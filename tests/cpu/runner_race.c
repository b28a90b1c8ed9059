/* Three callers share a pool of four threads; each region reads what the one before wrote.  Built
 * with -fsanitize=thread by test_races.py.  Ends with status 1 when a result is wrong. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "md_runner.h"

#define N 4096
typedef struct {
  unsigned a[N], b[N];
} buffers;

static md_pool *pool;
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

static void *caller(void *unused) {
  buffers *own = calloc(2, sizeof *own), *expected = own + 1;
  for (int round = 0; round < 80; round++) {
    md_pool_acquire(pool);
    for (int k = 0; k < 10; k++) {
      const int tasks = 1 + (round * 37 + k * 411) % N, grain = 1 + round % 50;
      md_pool_parallel(pool, forth, own, N, 64);
      md_pool_parallel(pool, back, own, tasks, grain);
      forth(expected, 0, 0, N);
      back(expected, 0, 0, tasks);
    }
    md_pool_release(pool);
    if (round % 3 == 0) md_pool_rest(pool);
    if (round % 20 == 0) usleep(1000);
  }
  if (memcmp(own, expected, sizeof *own)) failed = 1;
  free(own);
  return unused;
}

int main(void) {
  pthread_t threads[3];
  pool = md_pool_new(4, 2000);
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, caller, NULL);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  md_pool_stop(pool);
  caller(NULL);
  md_pool_free(pool);
  puts(failed ? "wrong" : "right");
  return failed;
}
