/* Weights in the order in which kernels read them.  These functions are kernels themselves, so that
 * all threads of a pool write (and, what takes longest, touch for the first time) the memory in which
 * the weights are to lie.  packing.py says what they are given. */
#include <string.h>

#include "md_runner.h"

#define LANES 8 /* what is transformed at once; vectors of channels are a multiple of it */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* Numbers of both: how many outputs and inputs a group of channels has, into how many vectors of
 * `lanes` outputs each of the first `wide` tile groups is divided (others have one vector less). */
typedef struct {
  int64_t outputs, inputs, lanes, vectors, wide, tile_groups;
  int64_t step; /* inputs of a task */
  int64_t taps, unit; /* md_pack_weights */
  int64_t local;      /* md_pack_transformed */
} shape;

/* What a task writes: outputs first..first+width-1 (some perhaps beyond the last, which are zero) of
 * a group, inputs begin..end-1. */
typedef struct {
  int64_t group, first, width, begin, end;
} part;

static part part_of(const shape *s, int64_t task) {
  const int64_t pieces = (s->inputs + s->step - 1) / s->step;
  const int64_t tile_group = task / pieces % s->tile_groups;
  part p;
  p.group = task / pieces / s->tile_groups;
  p.first = (tile_group * s->vectors - most(0, tile_group - s->wide)) * s->lanes;
  p.width = (s->vectors - (tile_group >= s->wide)) * s->lanes;
  p.begin = task % pieces * s->step;
  p.end = least(s->inputs, p.begin + s->step);
  return p;
}

static int64_t slots(const shape *s) {
  return (s->outputs + s->lanes - 1) / s->lanes * s->lanes;
}

/* pointers: floats to write, shape, weights [group][output][input][tap].  Written are
 * [group][tile group][block of `unit` inputs][tap][input][lane]. */
void md_pack_weights(void *const *pointers, int32_t begin, int32_t end, void *scratch) {
  const shape *s = pointers[1];
  const int64_t taps = s->taps, depth = s->inputs * taps;
  (void)scratch;
  for (int64_t task = begin; task < end; task++) {
    const part p = part_of(s, task);
    const float *weights = (const float *)pointers[2] + (p.group * s->outputs + p.first) * depth;
    float *packed = (float *)pointers[0] + (p.group * slots(s) + p.first) * depth;
    const int64_t valid = least(p.width, s->outputs - p.first);
    for (int64_t at = p.begin; at < p.end; at += s->unit) {
      const int64_t inputs = least(s->unit, s->inputs - at);
      float *block = packed + at * taps * p.width;
      for (int64_t lane = 0; lane < valid; lane++) {
        const float *row = weights + lane * depth + at * taps;
        for (int64_t tap = 0; tap < taps; tap++) {
          float *column = block + tap * inputs * p.width + lane;
          for (int64_t i = 0; i < inputs; i++) column[i * p.width] = row[i * taps + tap];
        }
      }
      for (int64_t i = 0; i < inputs * taps; i++)
        for (int64_t lane = valid; lane < p.width; lane++) block[i * p.width + lane] = 0;
    }
  }
}

/* The n x n transformed taps G g G' of LANES outputs and one input, in float64, rounded once. */
static inline void transform(int n, const double *matrix, const float *weights, int64_t apart,
                             int64_t valid, float *packed, int64_t next) {
  double taps[9][LANES], half[3][LANES];
  for (int tap = 0; tap < 9; tap++)
    for (int lane = 0; lane < LANES; lane++)
      taps[tap][lane] = lane < valid ? (double)weights[lane * apart + tap] : 0;
  for (int row = 0; row < n; row++) {
    const double *g = matrix + 3 * row;
    for (int tap = 0; tap < 3; tap++)
      for (int lane = 0; lane < LANES; lane++)
        half[tap][lane] =
            g[0] * taps[tap][lane] + g[1] * taps[3 + tap][lane] + g[2] * taps[6 + tap][lane];
    for (int column = 0; column < n; column++, packed += next) {
      const double *h = matrix + 3 * column;
      for (int lane = 0; lane < LANES; lane++)
        packed[lane] =
            (float)(h[0] * half[0][lane] + h[1] * half[1][lane] + h[2] * half[2][lane]);
    }
  }
}

static inline void transform_part(int n, const shape *s, const part *p, void *const *pointers) {
  const double *matrix = pointers[2];
  const int64_t next = s->inputs * (s->local ? p->width : slots(s));
  float *packed = (float *)pointers[0] + p->first * s->inputs * (s->local ? n * n : 1);
  for (int64_t lane = 0; lane < p->width; lane += LANES) {
    const int64_t output = p->first + lane, valid = most(0, s->outputs - output);
    const float *weights = (const float *)pointers[3] + output * s->inputs * 9;
    for (int64_t i = p->begin; i < p->end; i++)
      transform(n, matrix, weights + i * 9, s->inputs * 9, valid, packed + i * p->width + lane, next);
  }
}

/* pointers: floats to write, shape, the transform's matrix G (n x 3) of float64, weights
 * [output][input][9].  Written are [tile group][matrix][input][lane] if local, else
 * [matrix][tile group][input][lane]. */
#define MD_PACK_TRANSFORMED(n)                                                            \
  void md_pack_transformed_##n(void *const *pointers, int32_t begin, int32_t end, void *scratch) { \
    (void)scratch;                                                                        \
    for (int64_t task = begin; task < end; task++) {                                      \
      const part p = part_of(pointers[1], task);                                          \
      transform_part(n, pointers[1], &p, pointers);                                       \
    }                                                                                     \
  }
MD_PACK_TRANSFORMED(4)
MD_PACK_TRANSFORMED(6)

/* pointers: floats to write, for each of them the number of a vector (-1: it is zero), a place in it,
 * and whether it is in bfloat16, then the vectors. */
void md_pick(void *const *pointers, int32_t begin, int32_t end, void *scratch) {
  float *picked = pointers[0];
  (void)scratch;
  for (int64_t i = begin; i < end; i++) {
    const int64_t *entry = (const int64_t *)pointers[1] + 3 * i;
    uint32_t bits = 0;
    if (entry[0] >= 0) {
      const void *vector = pointers[2 + entry[0]];
      if (entry[2]) bits = (uint32_t)((const uint16_t *)vector)[entry[1]] << 16;
      else bits = ((const uint32_t *)vector)[entry[1]];
    }
    memcpy(picked + i, &bits, sizeof bits);
  }
}
