/* A pool of threads that spin briefly and then sleep.
 *
 * A parallel region is announced by raising `round`.  Each thread owns an equal, contiguous share
 * of the tasks and takes chunks from it; a thread that has finished its own takes chunks from the
 * others.  Shares keep a thread near the data that it wrote in the region before; taking from
 * others evens out what the system does to a thread.  Which thread runs a task changes nothing
 * about its result.  Chunks become smaller towards the end of a share: small ones even out more,
 * but taking one waits until all that was written before has reached the cache.
 *
 * A thread enters a round by compare-and-swap on its seat.  The caller, when no tasks are left,
 * closes the seats of threads that have not entered (they were asleep, or not scheduled) and waits
 * only for those that have.  So a busy machine delays a region by no more than one chunk.
 *
 * A pool has threads of its own, or those of an OpenMP library for the time of a run: who computes
 * with that library before and after finds them as it left them, and neither has to wait until the
 * other's threads have left the cores.
 */
#define _GNU_SOURCE
#include "md_runner.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "wait.h"

#define LINE 128 /* two cache lines: the processor fetches them in pairs */
#define STACK_BYTES ((size_t)8 << 20)
#define CALLER_SPIN_NS 50000
#define PARTS 3 /* a chunk is one of so many of what is left of its share */

/* A round is a sequence number and, in its low bits, how many threads take part: the others need
 * not enter to learn that.  A seat's state is round * 4 + one of the names below.  Both only grow. */
#define TEAM_BITS 11
#define TEAM_MASK ((1 << TEAM_BITS) - 1)
enum { ENTERED = 1, DONE = 2, CLOSED = 3 };

typedef struct {
  _Alignas(LINE) atomic_ullong state;
  /* 32 bits of the sequence number, never 0, then the next task of this share. */
  _Alignas(LINE) atomic_ullong next;
} seat;

typedef struct {
  md_pool *pool;
  int thread;
} start;

struct md_pool {
  _Alignas(LINE) atomic_ullong round;
  atomic_int stop;
  atomic_ullong rested; /* the round after which threads sleep at once */
  /* What the round is about; written before `round`, read after entering. */
  md_work work;
  void *argument;
  int32_t tasks;
  int32_t grain;
  int team;

  _Alignas(LINE) atomic_int sleepers;
  atomic_uint bell; /* what sleeping threads wait on */
  _Alignas(LINE) atomic_int caller_sleeps;
  atomic_uint finished; /* what a sleeping caller waits on */

  _Alignas(LINE) pthread_mutex_t turn; /* one run at a time */
  uint64_t sequence;
  int threads;
  int alive;
  int64_t spin_ns;
  md_team team_of; /* whose threads it takes; null: its own */
  pthread_t *handles;
  start *starts;
  seat *seats;
  md_pool *following; /* in the list of all pools */
};

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static md_pool *all_pools;

/* ---- fork: threads do not exist in the child; the next run starts them again ---- */

static void before_fork(void) { pthread_mutex_lock(&list_mutex); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&list_mutex); }
static void after_fork_in_child(void) {
  pthread_mutex_init(&list_mutex, NULL);
  md_wait_reset();
  for (md_pool *pool = all_pools; pool; pool = pool->following) {
    pthread_mutex_init(&pool->turn, NULL);
    pool->alive = 0;
    pool->team_of = NULL; /* libgomp has lost its threads, and does not know it */
    atomic_store(&pool->sleepers, 0);
    atomic_store(&pool->caller_sleeps, 0);
    atomic_store(&pool->stop, 0);
  }
}
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

/* ---- taking tasks ---- */

static void run_share(md_pool *pool, uint64_t round, int owner, int thread) {
  seat *from = &pool->seats[owner];
  const int64_t tasks = pool->tasks;
  const int32_t begin = (int32_t)(tasks * owner / pool->team);
  const int32_t end = (int32_t)(tasks * (owner + 1) / pool->team);
  const uint64_t tag = round >> TEAM_BITS << 32;
  uint64_t seen = atomic_load_explicit(&from->next, memory_order_relaxed);
  for (;;) {
    /* A value of another round means that nobody has taken anything yet. */
    const int32_t first = (seen ^ tag) >> 32 ? begin : (int32_t)(uint32_t)seen;
    if (first >= end) return;
    const int32_t left = end - first, part = left / PARTS / pool->grain * pool->grain;
    const int32_t size = part > pool->grain ? part : pool->grain;
    const int32_t last = left > size ? first + size : end;
    if (atomic_compare_exchange_weak_explicit(&from->next, &seen, tag | (uint32_t)last,
                                              memory_order_relaxed, memory_order_relaxed)) {
      pool->work(pool->argument, thread, first, last);
      seen = atomic_load_explicit(&from->next, memory_order_relaxed);
    }
  }
}

static void run_all_shares(md_pool *pool, uint64_t round, int thread) {
  for (int i = 0; i < pool->team; i++) {
    int owner = thread + i;
    run_share(pool, round, owner < pool->team ? owner : owner - pool->team, thread);
  }
}

/* ---- the threads ---- */

static void default_floating_point(void) {
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(0x1f80); /* round to nearest, denormals kept, no exceptions */
#endif
}

/* Waits for a round other than `seen`; returns `seen` when the pool stops. */
static uint64_t next_round(md_pool *pool, uint64_t seen) {
  int64_t until = 0;
  for (unsigned spins = 1;; spins++) {
    uint64_t round = atomic_load_explicit(&pool->round, memory_order_acquire);
    if (round != seen) return round;
    if (atomic_load_explicit(&pool->stop, memory_order_relaxed)) return seen;
    md_pause();
    if (spins % 16) continue;
    const int64_t now = md_now_ns();
    if (!until) until = now + pool->spin_ns;
    if (now < until && atomic_load_explicit(&pool->rested, memory_order_relaxed) != seen) continue;
    const unsigned bell = atomic_load(&pool->bell);
    atomic_fetch_add(&pool->sleepers, 1);
    if (atomic_load(&pool->round) == seen && !atomic_load(&pool->stop)) md_wait(&pool->bell, bell);
    atomic_fetch_sub(&pool->sleepers, 1);
    until = 0;
  }
}

/* Takes part in rounds until the pool stops. */
static void take_part(md_pool *pool, int thread) {
  seat *own = &pool->seats[thread];
  uint64_t seen = atomic_load(&own->state) >> 2;
  for (;;) {
    const uint64_t round = next_round(pool, seen);
    if (round == seen) return;
    seen = round;
    if (thread >= (int)(round & TEAM_MASK)) continue;
    unsigned long long state = atomic_load(&own->state);
    /* The caller closes rounds while this thread is on its way: never enter an older one. */
    if (state >> 2 >= round) continue;
    if (!atomic_compare_exchange_strong(&own->state, &state, round << 2 | ENTERED)) continue;
    run_all_shares(pool, round, thread);
    atomic_store(&own->state, round << 2 | DONE);
    if (atomic_load(&pool->caller_sleeps)) {
      atomic_fetch_add(&pool->finished, 1);
      md_wake_all(&pool->finished);
    }
  }
}

static void *thread_main(void *argument) {
  const start *own = argument;
  default_floating_point();
  take_part(own->pool, own->thread);
  return NULL;
}

/* Starts what is not there; fewer threads than wished for are enough. */
static void start_threads(md_pool *pool) {
  const uint64_t round = atomic_load(&pool->round);
  sigset_t all, before;
  pthread_attr_t attributes;
  sigfillset(&all); /* signals are for the threads of the program, Ctrl-C above all */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, STACK_BYTES);
  while (pool->alive < pool->threads - 1) {
    const int thread = pool->alive + 1;
    pool->starts[thread] = (start){pool, thread};
    atomic_store(&pool->seats[thread].state, round << 2 | DONE);
    if (pthread_create(&pool->handles[thread], &attributes, thread_main, &pool->starts[thread]))
      break;
    pool->alive++;
  }
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* ---- the caller's side ---- */

static void wait_for(md_pool *pool, seat *other, uint64_t round) {
  unsigned long long state = atomic_load_explicit(&other->state, memory_order_acquire);
  while (state >> 2 != round)
    if (atomic_compare_exchange_weak(&other->state, &state, round << 2 | CLOSED)) return;
  if ((state & 3) != ENTERED) return;
  int64_t until = 0;
  for (unsigned spins = 1;; spins++) {
    if ((atomic_load_explicit(&other->state, memory_order_acquire) & 3) == DONE) return;
    md_pause();
    if (spins % 16) continue;
    const int64_t now = md_now_ns();
    if (!until) until = now + CALLER_SPIN_NS;
    if (now < until) continue;
    const unsigned finished = atomic_load(&pool->finished);
    atomic_store(&pool->caller_sleeps, 1);
    if ((atomic_load(&other->state) & 3) != DONE) md_wait(&pool->finished, finished);
    atomic_store(&pool->caller_sleeps, 0);
  }
}

/* Where the 32 bits that mark claims begin again, marks of the time before are wiped out. */
static uint64_t next_sequence(md_pool *pool) {
  if (!(uint32_t)++pool->sequence) {
    for (int i = 0; i < pool->threads; i++) atomic_store(&pool->seats[i].next, 0);
    pool->sequence++;
  }
  return pool->sequence;
}

void md_pool_parallel(md_pool *pool, md_work work, void *argument, int32_t tasks, int32_t grain) {
  const int32_t chunks = (int32_t)(((int64_t)tasks + grain - 1) / grain);
  const int team = pool->alive + 1 < chunks ? pool->alive + 1 : chunks;
  if (team <= 1) {
    if (tasks > 0) work(argument, 0, 0, tasks);
    return;
  }
  pool->work = work;
  pool->argument = argument;
  pool->tasks = tasks;
  pool->grain = grain;
  pool->team = team;
  const uint64_t round = next_sequence(pool) << TEAM_BITS | (uint64_t)team;
  atomic_store(&pool->round, round);
  if (atomic_load(&pool->sleepers)) {
    atomic_fetch_add(&pool->bell, 1);
    md_wake_all(&pool->bell);
  }
  run_all_shares(pool, round, 0);
  for (int i = 1; i < team; i++) wait_for(pool, &pool->seats[i], round);
}

static void stop(md_pool *pool) {
  atomic_store(&pool->stop, 1);
  atomic_fetch_add(&pool->bell, 1);
  md_wake_all(&pool->bell);
}

typedef struct {
  md_pool *pool;
  md_job run;
  void *argument;
  pthread_t caller;
  atomic_int arrived; /* beside the caller */
} visit;

static void visit_pool(void *argument) {
  visit *now = argument;
  md_pool *pool = now->pool;
  if (pthread_equal(pthread_self(), now->caller)) {
    now->run(now->argument);
    stop(pool);
    return;
  }
  const int thread = atomic_fetch_add(&now->arrived, 1) + 1;
  if (thread >= pool->threads) return;
#if defined(__x86_64__)
  const unsigned mode = __builtin_ia32_stmxcsr();
#endif
  default_floating_point();
  take_part(pool, thread);
#if defined(__x86_64__)
  __builtin_ia32_ldmxcsr(mode);
#endif
}

/* Runs with the threads of a team.  Those that come late, or never, find their seats closed. */
static void run_in_team(md_pool *pool, md_job run, void *argument) {
  visit now = {pool, run, argument, pthread_self(), 0};
  pool->alive = pool->threads - 1;
  pool->team_of(visit_pool, &now, (unsigned)pool->threads, 0);
  pool->alive = 0;
  atomic_store(&pool->stop, 0);
}

void md_pool_run(md_pool *pool, md_job run, void *argument) {
  pthread_mutex_lock(&pool->turn);
  if (pool->team_of) {
    run_in_team(pool, run, argument);
  } else {
    if (pool->alive < pool->threads - 1) start_threads(pool);
    run(argument);
  }
  pthread_mutex_unlock(&pool->turn);
}

/* Lets threads sleep that wait for the next round: others need their cores now. */
void md_pool_rest(md_pool *pool) { atomic_store(&pool->rested, atomic_load(&pool->round)); }

int md_pool_threads(const md_pool *pool) { return pool->threads; }

int md_pool_alive(md_pool *pool) {
  pthread_mutex_lock(&pool->turn);
  const int alive = pool->alive;
  pthread_mutex_unlock(&pool->turn);
  return alive;
}

/* ---- making and ending pools ---- */

md_pool *md_pool_new(int threads, int64_t spin_ns, md_team team) {
  md_pool *pool = aligned_alloc(LINE, (sizeof *pool + LINE - 1) / LINE * LINE);
  seat *seats = aligned_alloc(LINE, sizeof *seats * (size_t)threads);
  start *starts = calloc((size_t)threads, sizeof *starts);
  pthread_t *handles = calloc((size_t)threads, sizeof *handles);
  if (!pool || !seats || !starts || !handles) {
    free(pool), free(seats), free(starts), free(handles);
    return NULL;
  }
  memset(pool, 0, sizeof *pool);
  memset(seats, 0, sizeof *seats * (size_t)threads);
  pool->threads = threads;
  pool->sequence = UINT32_MAX - 5000; /* so that beginning again is no rare event */
  pool->spin_ns = spin_ns;
  pool->team_of = team;
  pool->seats = seats;
  pool->starts = starts;
  pool->handles = handles;
  pthread_mutex_init(&pool->turn, NULL);
  pthread_mutex_lock(&list_mutex);
  pool->following = all_pools;
  all_pools = pool;
  pthread_mutex_unlock(&list_mutex);
  return pool;
}

void md_pool_stop(md_pool *pool) {
  pthread_mutex_lock(&pool->turn);
  stop(pool);
  for (int i = 1; i <= pool->alive; i++) pthread_join(pool->handles[i], NULL);
  pool->alive = 0;
  atomic_store(&pool->stop, 0);
  pthread_mutex_unlock(&pool->turn);
}

void md_pool_free(md_pool *pool) {
  md_pool_stop(pool);
  pthread_mutex_lock(&list_mutex);
  for (md_pool **link = &all_pools; *link; link = &(*link)->following) {
    if (*link == pool) {
      *link = pool->following;
      break;
    }
  }
  pthread_mutex_unlock(&list_mutex);
  pthread_mutex_destroy(&pool->turn);
  free(pool->seats), free(pool->starts), free(pool->handles), free(pool);
}
