// A product of few rows in exact float32: a warp makes one filter's results of one part, and its
// lanes take neighbouring products, so that the filters, which are all that counts, stream past.
extern "C" __global__ void __launch_bounds__($THREADS$)
    $NAME$(const float *__restrict__ x, const float *__restrict__ w, float *__restrict__ y) {
  constexpr int M = $M$, N = $N$, K = $K$, DEPTH = $DEPTH$, WARPS = $THREADS$ / 32;
  const int lane = threadIdx.x % 32, n = blockIdx.x * WARPS + threadIdx.x / 32;
  const int begin = blockIdx.z * DEPTH, end = begin + DEPTH < K ? begin + DEPTH : K;
  const float *const filter = w + (n < N ? n : 0) * (long long)K;
  float sum[M] = {};
  #pragma unroll 4
  for (int k = begin + lane * 4; k < end; k += 128) {
    float b[4];
    md_load<4>(b, filter + k);
    #pragma unroll
    for (int m = 0; m < M; m++) {
      float a[4];
      md_load<4>(a, x + m * $STEP$ll + k);
      #pragma unroll
      for (int j = 0; j < 4; j++) sum[m] = md_fma(a[j], b[j], sum[m]);
    }
  }
  y += (long long)blockIdx.z * M * N;
  #pragma unroll
  for (int m = 0; m < M; m++) {
    #pragma unroll
    for (int by = 16; by > 0; by /= 2) sum[m] += __shfl_down_sync(0xffffffffu, sum[m], by);
    if (lane == 0 && n < N) y[m * (long long)N + n] = sum[m];
  }
}
