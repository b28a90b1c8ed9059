// A vector after the other.
//
// foreach copies as many numbers at once as there are lanes.
//
// Expect: Memory limits. A line of the result is read before it is written, so half as much again
// is moved as is counted.
MD_KERNEL(vectors) {
  const uniform float * uniform x = MD_IN(float, 0);
  uniform float * uniform y = MD_OUT(float, 1);
  foreach (at = md_begin * PIECE ... md_end * PIECE) y[at] = x[at];
}
