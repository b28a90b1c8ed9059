// A filter turned around: filters and channels change places, and windows begin with their last tap.
// A thread moves one weight.
extern "C" __global__ void __launch_bounds__(256) $NAME$(const $T$ *__restrict__ w, $T$ *turned,
                                                         const long long P_size,
                                                         const long long P_filters,
                                                         const long long P_channels,
                                                         const long long P_window) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= P_size) return;
  const long long last = P_window - 1;
  if ($PLANAR$) {
    const long long tap = i % P_window, k = i / P_window % P_filters, c = i / P_window / P_filters;
    turned[i] = w[(k * P_channels + c) * P_window + last - tap];
  } else {
    const long long k = i % P_filters, tap = i / P_filters % P_window, c = i / P_filters / P_window;
    turned[i] = w[(k * P_window + last - tap) * P_channels + c];
  }
}
