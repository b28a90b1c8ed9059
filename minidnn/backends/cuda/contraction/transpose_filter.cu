// A filter turned around: in each group filters and channels change places, and windows begin with
// their last tap.  A thread moves one weight.
extern "C" __global__ void __launch_bounds__(256) $NAME$(const $T$ *__restrict__ w, $T$ *turned,
                                                         const long long P_size,
                                                         const long long P_filters,
                                                         const long long P_channels,
                                                         const long long P_window) {
  const long long i = blockIdx.x * 256ll + threadIdx.x;
  if (i >= P_size) return;
  const bool planar = $PLANAR$;
  const long long inner = planar ? P_window : P_filters, outer = planar ? P_filters : P_window;
  const long long low = i % inner, high = i / inner % outer, channel = i / inner / outer;
  const long long k = planar ? high : low, tap = P_window - 1 - (planar ? low : high);
  const long long filter = channel / P_channels * P_filters + k, c = channel % P_channels;
  const long long from = planar ? c * P_window + tap : tap * P_channels + c;
  turned[i] = w[filter * P_channels * P_window + from];
}
