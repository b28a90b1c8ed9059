// One number after the other.
//
// A task copies a piece, each number by a read and a write of its own.
//
// Expect: Instructions limit, not memory, unless the compiler sees through it and makes vectors.
MD_KERNEL(scalar) {
  const uniform float * uniform x = MD_IN(float, 0);
  uniform float * uniform y = MD_OUT(float, 1);
  for (uniform int at = md_begin * PIECE; at < md_end * PIECE; at++) y[at] = x[at];
}
