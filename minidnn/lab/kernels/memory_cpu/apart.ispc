// Lanes far apart.
//
// Lanes read numbers a whole row of STRIDE apart, as those of a column of a matrix are: a line of
// the cache is fetched for each lane, and used again only STRIDE vectors later.
//
// Expect: Several times slower: a read becomes as many as there are lanes.
MD_KERNEL(apart) {
  const uniform float * uniform x = MD_IN(float, 0);
  uniform float * uniform y = MD_OUT(float, 1);
  for (uniform int begin = md_begin * PIECE; begin < md_end * PIECE; begin += LANES * STRIDE)
    for (uniform int column = 0; column < STRIDE; column++)
      y[begin + programIndex * STRIDE + column] = x[begin + programIndex * STRIDE + column];
}
