  // Each block of the cluster leaves its part of the sums in its shared memory, then adds up OWN rows
  // of all parts, always in the same order: a thread a chunk of eight filters of every DOWN-th row.
  // Meanwhile the next tile's slabs arrive.
  enum { PITCH = BN + 8, OWN = BM / PARTS, ACROSS = BN / 8, DOWN = THREADS / ACROSS };
  enum { TIMES = (OWN + DOWN - 1) / DOWN };
  float *sums = (float *)(md_shared + STAGES * STAGE);
  #pragma unroll
  for (int i = 0; i < WM / 16; i++)
    turn<WN, PITCH, true>(sums + (wm + i * 16) * PITCH + wn, c[i][0], lane);
  const int n = n0 + thread % ACROSS * 8;
  const bool some = n < filters;
$VECTORS$
$OTHERS$
  md_cluster_meet();
  float total[TIMES][8];
  #pragma unroll
  for (int i = 0; i < TIMES; i++) {
    const int row = i * DOWN + thread / ACROSS;
    if (row < OWN) {
      const float *from = sums + (part * OWN + row) * PITCH + thread % ACROSS * 8;
      md_load_of(total[i], from, 0);
      #pragma unroll
      for (int k = 1; k < PARTS; k++) {
        float more[8];
        md_load_of(more, from, k);
        #pragma unroll
        for (int j = 0; j < 8; j++) total[i][j] = $ADDED$;
      }
    }
  }
  md_cluster_done();
  #pragma unroll
  for (int i = 0; i < TIMES; i++) {
    const int row = i * DOWN + thread / ACROSS;
    const long long m = m0 + part * OWN + row;
    if (row < OWN && m < P_pixels && some) {
$TOTAL$
      float r[8];
$EPILOGUE$
      md_store<8>(y + m * P_y + n, r);
    }
  }
  md_cluster_leave();
