// A product of rows in exact float32: y[part][m][n] = sum over the part's k of x[m][k] * w[n][k].
//
// A block makes BM rows by BN filters of one part, a thread RM x RN of them in groups of four, from
// slabs of 16 products in shared memory; the next slab is on its way into registers meanwhile.
extern "C" __global__ void __launch_bounds__($THREADS$, 2)
    $NAME$(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y) {
  constexpr int M = $M$, N = $N$, K = $K$, DEPTH = $DEPTH$, THREADS = $THREADS$;
  constexpr int BM = $BM$, BN = $BN$, RM = $RM$, RN = $RN$, TX = BN / RN, TY = BM / RM;
  constexpr int SLAB = 16 * (BM + 4 + BN + 4), LOADS_X = BM * 4 / THREADS, LOADS_W = BN * 4 / THREADS;
  MD_SHARED;
  float *const slabs = (float *)md_shared;
  const int thread = threadIdx.x, tx = thread % TX * 4, ty = thread / TX * 4;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  const int begin = blockIdx.z * DEPTH, end = begin + DEPTH < K ? begin + DEPTH : K;
  float left[LOADS_X][4], right[LOADS_W][4], sum[RM][RN] = {};
  const auto load = [&](int k0) {
    #pragma unroll
    for (int i = 0; i < LOADS_X; i++) {
      const int at = thread + i * THREADS, m = m0 + at / 4, k = k0 + at % 4 * 4;
      left[i][0] = left[i][1] = left[i][2] = left[i][3] = 0.0f;
      if (m < M && k < end) md_load<4>(left[i], x + m * $STEP$ll + k);
    }
    #pragma unroll
    for (int i = 0; i < LOADS_W; i++) {
      const int at = thread + i * THREADS, n = n0 + at / 4, k = k0 + at % 4 * 4;
      right[i][0] = right[i][1] = right[i][2] = right[i][3] = 0.0f;
      if (n < N && k < end) md_load<4>(right[i], w + n * (long long)K + k);
    }
  };
  const auto store = [&](float *slab) {
    #pragma unroll
    for (int i = 0; i < LOADS_X; i++) {
      const int at = thread + i * THREADS;
      #pragma unroll
      for (int j = 0; j < 4; j++) slab[(at % 4 * 4 + j) * (BM + 4) + at / 4] = left[i][j];
    }
    #pragma unroll
    for (int i = 0; i < LOADS_W; i++) {
      const int at = thread + i * THREADS;
      #pragma unroll
      for (int j = 0; j < 4; j++)
        slab[16 * (BM + 4) + (at % 4 * 4 + j) * (BN + 4) + at / 4] = right[i][j];
    }
  };
  load(begin);
  store(slabs);
  __syncthreads();
  int slot = 0;
  for (int k0 = begin; k0 < end; k0 += 16) {
    if (k0 + 16 < end) load(k0 + 16);
    const float *const slab = slabs + slot * SLAB;
    #pragma unroll
    for (int k = 0; k < 16; k++) {
      float a[RM / 4][4], b[RN / 4][4];
      #pragma unroll
      for (int g = 0; g < RM / 4; g++) md_load<4>(a[g], slab + k * (BM + 4) + g * TY * 4 + ty);
      #pragma unroll
      for (int g = 0; g < RN / 4; g++)
        md_load<4>(b[g], slab + 16 * (BM + 4) + k * (BN + 4) + g * TX * 4 + tx);
      #pragma unroll
      for (int i = 0; i < RM; i++)
        #pragma unroll
        for (int j = 0; j < RN; j++)
          sum[i][j] = md_fma(a[i / 4][i % 4], b[j / 4][j % 4], sum[i][j]);
    }
    slot ^= 1;
    if (k0 + 16 < end) store(slabs + slot * SLAB);
    __syncthreads();
  }
  y += (long long)blockIdx.z * M * N;
  #pragma unroll
  for (int i = 0; i < RM; i++) {
    const int m = m0 + i / 4 * TY * 4 + ty + i % 4;
    #pragma unroll
    for (int g = 0; g < RN / 4; g++) {
      const int n = n0 + g * TX * 4 + tx;
      const float four[4] = {sum[i][g * 4], sum[i][g * 4 + 1], sum[i][g * 4 + 2], sum[i][g * 4 + 3]};
      if (m < M && n < N) {
        if (N % 4 == 0) {
          md_store<4>(y + m * (long long)N + n, four);
        } else {
          for (int j = 0; j < 4; j++)
            if (n + j < N) y[m * (long long)N + n + j] = four[j];
        }
      }
    }
  }
}
