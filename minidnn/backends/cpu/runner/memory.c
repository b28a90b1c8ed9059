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

/* Has the processor fetch these lines, all of them at a time; an address where nothing is does no
 * harm. */
void md_fetch(const void *const *addresses, int32_t count) {
  for (int32_t i = 0; i < count; i++) __builtin_prefetch(addresses[i]);
}

/* Reads these words as they are now. */
void md_take_words(const uint64_t *const *words, uint64_t *seen, int32_t count) {
  for (int32_t i = 0; i < count; i++) seen[i] = *words[i];
}

/* None of them waits for another: the processor has as many under way as it can. */
static int words_unchanged(const uint64_t *const *words, const uint64_t *seen, int32_t count) {
  uint64_t changed = 0;
  for (int32_t i = 0; i < count; i++) changed |= *words[i] ^ seen[i];
  return !changed;
}

/* Each word is reached again from the tensor's Python object. */
static int tensors_unchanged(const md_tensor *seen, int32_t count, const md_tensor_layout *at) {
  enum { AHEAD = 8 };
  uint64_t changed = 0;
  for (int32_t i = 0; i < count; i++) {
    if (i + AHEAD < count) {
      const md_tensor *later = &seen[i + AHEAD];
      __builtin_prefetch(later->object + at->body);
      __builtin_prefetch(later->body + at->storage);
      __builtin_prefetch(later->body + at->counter);
      __builtin_prefetch(later->body + at->offset);
      __builtin_prefetch(later->counter + at->version);
      __builtin_prefetch(later->storage + at->data);
    }
    const md_tensor *tensor = &seen[i];
    const char *body = *(char *const *)(tensor->object + at->body);
    if (body != tensor->body) return 0; /* the rest would be another tensor's */
    const char *counter = *(char *const *)(body + at->counter);
    const char *storage = *(char *const *)(body + at->storage);
    if (counter != tensor->counter || storage != tensor->storage) return 0;
    changed |= *(const uint32_t *)(counter + at->version) ^ tensor->version;
    changed |= *(const uint64_t *)(storage + at->data) ^ tensor->data;
    changed |= *(const uint64_t *)(body + at->offset) ^ tensor->offset;
  }
  return !changed;
}

/* Whether all these words are as they were, and all these tensors by the offsets that
 * md_tensor_layout has.  The global interpreter lock must be held, and the objects be alive in which
 * the words are. */
int md_unchanged(const uint64_t *const *words, const uint64_t *seen, int32_t count,
                 const md_tensor *tensors, int32_t tensor_count, const md_tensor_layout *at) {
  return words_unchanged(words, seen, count) && tensors_unchanged(tensors, tensor_count, at);
}
