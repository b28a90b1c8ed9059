"""Kernels that draw random numbers: dropout of elements or channels of NCHW values.

A kernel knows no sizes.  Its pointers are the operand, seed, step, output, and the sizes.
"""

from __future__ import annotations

from math import prod

import numpy as np

from ....graph.operators import RandomDrop
from ....graph.types import TensorType
from ...codegen.kernel import KernelSource
from .broadcast import CHUNK, WORTH, Shaped

# ``graph.philox``: four words of the counter (block, stream, step) under the key ``seed``.
_PHILOX = """\
static inline void @_philox(unsigned int32 block, uniform unsigned int32 stream,
                            uniform unsigned int64 step, uniform unsigned int64 seed,
                            unsigned int32 words[4]) {
  unsigned int32 a = block, b = stream;
  unsigned int32 c = (unsigned int32)step, d = (unsigned int32)(step >> 32);
  uniform unsigned int32 first = (uniform unsigned int32)seed;
  uniform unsigned int32 second = (uniform unsigned int32)(seed >> 32);
  for (uniform int round = 0; round < 10; round++) {
    const unsigned int64 x = (unsigned int64)a * (unsigned int64)0xD2511F53;
    const unsigned int64 y = (unsigned int64)c * (unsigned int64)0xCD9E8D57;
    a = (unsigned int32)(y >> 32) ^ b ^ first;
    b = (unsigned int32)y;
    c = (unsigned int32)(x >> 32) ^ d ^ second;
    d = (unsigned int32)x;
    first += 0x9E3779B9;
    second += 0xBB67AE85;
  }
  words[0] = a;
  words[1] = b;
  words[2] = c;
  words[3] = d;
}

"""
_BEGIN = """\
MD_KERNEL(@) {
  const uniform int64 * uniform n = MD_IN(int64, 4);
  const uniform unsigned int64 seed = (uniform unsigned int64)MD_IN(int64, 1)[0];
  const uniform unsigned int64 step = (uniform unsigned int64)MD_IN(int64, 2)[0];
  const uniform unsigned int32 stream = (uniform unsigned int32)n[0];
  const uniform unsigned int64 least = (uniform unsigned int64)n[1];  // less is 0
  const uniform float scale = floatbits((uniform unsigned int32)n[2]);
  unsigned int32 words[4];
  for (uniform int64 t = md_begin; t < md_end; t++) {
"""
_ELEMENTS = f"""\
    const uniform int64 first = t * {CHUNK};
    const uniform int count = (uniform int)min(n[3] - first, (uniform int64){CHUNK});
    const uniform float * uniform x = MD_IN(float, 0) + first;
    uniform float * uniform y = MD_OUT(float, 3) + first;
    foreach (block = 0 ... (count + 3) / 4) {{
      @_philox((unsigned int32)(first / 4 + block), stream, step, seed, words);
      for (uniform int j = 0; j < 4; j++) {{
        const int i = 4 * block + j;
        if (i < count)
          y[i] = words[j] < least ? 0.0f : x[i] * scale;
      }}
    }}
"""
_CHANNELS = """\
    @_philox((uniform unsigned int32)(t / 4), stream, step, seed, words);
    const uniform bool dropped = extract(words[t % 4], 0) < least;
    const uniform float * uniform x = MD_IN(float, 0) + t * n[3];
    uniform float * uniform y = MD_OUT(float, 3) + t * n[3];
    foreach (i = 0 ... n[3])
      y[i] = dropped ? 0.0f : x[i] * scale;
"""


def print_random_drop(op: RandomDrop, type: TensorType) -> Shaped:
    """A task is a chunk of elements, or a channel."""
    scale = int(np.float32(op.scale).view(np.uint32))
    plane = prod(type.shape[2:])
    tasks = prod(type.shape[:2]) if op.channels else -(-type.size // CHUNK)
    size = plane if op.channels else type.size
    text = _PHILOX + _BEGIN + (_CHANNELS if op.channels else _ELEMENTS) + "  }\n}\n"
    sizes = np.array([op.stream, op.threshold, scale, size], np.int64)
    grain = max(1, min(WORTH // max(plane, 1), tasks // 8)) if op.channels else 1
    return Shaped(KernelSource.named("random_drop", text), sizes, tasks, grain)
