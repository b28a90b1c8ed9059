// Adds up the parts of a gradient, always in the same order: a warp every WARPS-th part of 32 numbers,
// then the warps' sums.
extern "C" __global__ void __launch_bounds__(256) $NAME$(const float *__restrict__ parts, $T$ *y,
                                                         const long long P_size,
                                                         const long long P_parts) {
  enum { WARPS = 8 };
  MD_SHARED;
  float *const sums = (float *)md_shared;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const long long at = blockIdx.x * 32ll + lane;
  float sum = 0.0f;
  if (at < P_size) {
    #pragma unroll 8
    for (int i = warp; i < (int)P_parts; i += WARPS) sum += parts[i * P_size + at];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0 || at >= P_size) return;
  for (int i = 1; i < WARPS; i++) sum += sums[i * 32 + lane];
  md_set(y[at], sum);
}
