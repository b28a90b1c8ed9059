  // Each warp turns its results, sixteen rows at a time, so that threads write whole chunks.
  // Meanwhile the next tile's slabs arrive.
  enum { PITCH = WN + 8 };
  float *turned = (float *)(md_shared + STAGES * STAGE) + warp * 16 * PITCH;
  const int n = n0 + wn + lane % (WN / 8) * 8;
  const bool some = n < filters;
$VECTORS$
$OTHERS$
  #pragma unroll
  for (int i = 0; i < WM / 16; i++) {
    turn<WN, PITCH>(turned, c[i][0], lane);
    __syncwarp();
    #pragma unroll
    for (int k = 0; k < WN / 16; k++) {
      const int row = lane / (WN / 8) + k * (32 / (WN / 8));
      const long long m = m0 + wm + i * 16 + row;
      if (m < P_pixels && some) {
        float a0[8], r[8];
        read_turned(a0, turned + row * PITCH + lane % (WN / 8) * 8, row);
$EPILOGUE$
        md_store<8>(y + m * P_y + n, r);
      }
$NEXT_OTHERS$
    }
    $JOIN$
  }
