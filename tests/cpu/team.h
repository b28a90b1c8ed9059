/* A team as an OpenMP library's GOMP_parallel makes it, but of threads that are new each time, and
 * every third time of one less than asked for. */
#include <pthread.h>

typedef struct {
  void (*body)(void *);
  void *argument;
} team_work;

static void *team_member(void *argument) {
  team_work *work = argument;
  work->body(work->argument);
  return NULL;
}

void team(void (*body)(void *), void *argument, unsigned threads, unsigned flags) {
  static unsigned times;
  team_work work = {body, argument};
  pthread_t others[8];
  const unsigned count = threads - 1 - (++times + flags) % 3 / 2;
  for (unsigned i = 0; i < count; i++) pthread_create(&others[i], NULL, team_member, &work);
  body(argument);
  for (unsigned i = 0; i < count; i++) pthread_join(others[i], NULL);
}
