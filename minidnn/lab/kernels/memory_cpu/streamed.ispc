// Written past the caches.
//
// Streaming stores go to memory by themselves: lines of the result are not read first, and nothing
// that others need is thrown out of the caches.
//
// Expect: Half as fast again where the operands are larger than the caches, and much slower where
// the caches would have kept them.
MD_KERNEL(streamed) {
  const uniform float * uniform x = MD_IN(float, 0);
  uniform float * uniform y = MD_OUT(float, 1);
  for (uniform int at = md_begin * PIECE; at < md_end * PIECE; at += LANES)
    streaming_store(y + at, x[at + programIndex]);
}
