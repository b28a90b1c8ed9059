// Filters for winograd.cu: each 3x3 filter becomes 16 numbers, G g G^T, by channel, number, filter;
// zeros where there is no such channel or filter.
extern "C" __global__ void __launch_bounds__(256)
    $NAME$(const float *__restrict__ w, float *__restrict__ u, const long long P_channels,
           const long long P_filters, const long long P_padded) {
  const int k = blockIdx.x * 256 + threadIdx.x, c = blockIdx.y;
  if (k >= (int)P_padded) return;
  float g[3][3] = {}, half[4][3];
  if (k < (int)P_filters && c < (int)P_channels) {
    #pragma unroll
    for (int i = 0; i < 9; i++) g[i / 3][i % 3] = w[(k * P_channels + c) * 9 + i];
  }
  #pragma unroll
  for (int j = 0; j < 3; j++) {
    const float ends = 0.5f * (g[0][j] + g[2][j]), middle = 0.5f * g[1][j];
    half[0][j] = g[0][j];
    half[1][j] = ends + middle;
    half[2][j] = ends - middle;
    half[3][j] = g[2][j];
  }
  float *const to = u + (long long)c * 16 * P_padded + k;
  #pragma unroll
  for (int i = 0; i < 4; i++) {
    const float ends = 0.5f * (half[i][0] + half[i][2]), middle = 0.5f * half[i][1];
    to[(i * 4 + 0) * P_padded] = half[i][0];
    to[(i * 4 + 1) * P_padded] = ends + middle;
    to[(i * 4 + 2) * P_padded] = ends - middle;
    to[(i * 4 + 3) * P_padded] = half[i][2];
  }
}
