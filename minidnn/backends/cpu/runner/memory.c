/* Buffers: large pages for large ones, guard pages for finding stray accesses. */
#define _GNU_SOURCE
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "md_runner.h"

#define LARGE_PAGE ((size_t)2 << 20)
#define GUARD ((size_t)1 << 20) /* on each side: a stray row is found, not only a stray element */
#define FRESH 0xff /* uninitialised data: as fp32 and fp64 a NaN */
#define SLACK 0xa5 /* between data and guard page, where alignment leaves a gap */

static size_t up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

/* Memory that reads as zero (plain) or as NaN (guarded). */
int md_memory_new(md_memory *memory, size_t size, size_t alignment, int mode) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (size > SIZE_MAX / 2) return ENOMEM;
  const size_t room = up(size ? size : 1, page);
  const int large = mode == MD_PLAIN && size >= LARGE_PAGE;
  const size_t mapped = mode != MD_PLAIN ? room + 2 * GUARD : large ? room + LARGE_PAGE : room;
  char *mapping = mmap(NULL, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapping == MAP_FAILED) return errno;
  char *data = mapping;
  if (large) {
    data = (char *)up((size_t)mapping, LARGE_PAGE);
#ifdef MADV_HUGEPAGE
    madvise(data, room, MADV_HUGEPAGE); /* a wish: without it everything works, slower */
#endif
  } else if (mode != MD_PLAIN) {
    char *first = mapping + GUARD;
    data = mode == MD_GUARD_START ? first : first + (room - size) / alignment * alignment;
    memset(first, SLACK, room);
    memset(data, FRESH, size);
    if (mprotect(mapping, GUARD, PROT_NONE) || mprotect(first + room, GUARD, PROT_NONE)) {
      const int error = errno;
      munmap(mapping, mapped);
      return error;
    }
  }
  *memory = (md_memory){mapping, mapped, data, size};
  return 0;
}

/* The offset from `data` of the first byte outside it that was written, or INT64_MIN. */
int64_t md_memory_check(const md_memory *memory) {
  const unsigned char *data = memory->data;
  const unsigned char *at = (const unsigned char *)memory->mapping + GUARD;
  const unsigned char *end = (const unsigned char *)memory->mapping + memory->mapped - GUARD;
  for (; at < end; at++)
    if ((at < data || at >= data + memory->size) && *at != SLACK) return at - data;
  return INT64_MIN;
}

void md_memory_free(md_memory *memory) {
  if (memory->mapping) munmap(memory->mapping, memory->mapped);
  memory->mapping = NULL;
}

/* Gives pages of the C library's heap that hold nothing back to the system. */
void md_memory_release(void) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}
