/* Waiting for a 32-bit word to change: a futex on Linux, a condition variable elsewhere. */
#ifndef MD_WAIT_H
#define MD_WAIT_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define md_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define md_pause() __asm__ __volatile__("yield")
#else
#define md_pause() ((void)0)
#endif

static inline int64_t md_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#if defined(__linux__) && !defined(MD_NO_FUTEX)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline void md_wait(atomic_uint *word, unsigned expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, (void *)0, (void *)0, 0);
}
static inline void md_wake_all(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, (void *)0, (void *)0, 0);
}
static inline void md_wait_reset(void) {}

#else
#include <pthread.h>

static pthread_mutex_t md_wait_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t md_wait_condition = PTHREAD_COND_INITIALIZER;

static inline void md_wait(atomic_uint *word, unsigned expected) {
  pthread_mutex_lock(&md_wait_mutex);
  while (atomic_load(word) == expected) pthread_cond_wait(&md_wait_condition, &md_wait_mutex);
  pthread_mutex_unlock(&md_wait_mutex);
}
static inline void md_wake_all(atomic_uint *word) {
  (void)word; /* the word has changed already: taking the mutex makes sure that nobody misses it */
  pthread_mutex_lock(&md_wait_mutex);
  pthread_cond_broadcast(&md_wait_condition);
  pthread_mutex_unlock(&md_wait_mutex);
}
/* After a fork the parent's waiters are gone. */
static inline void md_wait_reset(void) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
  md_wait_mutex = mutex;
  md_wait_condition = condition;
}
#endif

#endif
