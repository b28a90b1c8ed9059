// Pixels of planes at distances of a stride, and zeros between them.  A warp writes one row.
extern "C" __global__ void __launch_bounds__(256) $NAME$(
    const float *__restrict__ few, float *many, const long long P_all_rows,
    const long long P_channels, const long long P_height, const long long P_breadth,
    const long long P_image, const long long P_channel, const long long P_row,
    const long long P_rows, const long long P_columns, const long long P_down,
    const long long P_across) {
  const unsigned int at = blockIdx.x * 8u + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (at >= (unsigned int)P_all_rows) return;
  const unsigned int plane = at / (unsigned int)P_height, y = at % (unsigned int)P_height;
  const unsigned int n = plane / (unsigned int)P_channels, c = plane % (unsigned int)P_channels;
  const unsigned int from = y / (unsigned int)P_down, across = (unsigned int)P_across;
  const bool some = y % (unsigned int)P_down == 0 && from < (unsigned int)P_rows;
  few += (plane * P_rows + from) * P_columns;
  many += n * P_image + c * P_channel + y * P_row;
  for (unsigned int x = lane; x < (unsigned int)P_breadth; x += 32) {
    const unsigned int column = x / across;
    const bool one = some && x % across == 0 && column < (unsigned int)P_columns;
    many[x] = one ? few[column] : 0.0f;
  }
}
