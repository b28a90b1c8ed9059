// The image as a texture.
//
// A texture is read by the number of an element, and what is outside is zero: padding needs no
// branch but a number that is none. Units of their own address and check what is fetched.
//
// Expect: No gain. Fetches go through the same L1 cache as loads, at a lower rate, and products
// with padding are computed instead of skipped; a warp no longer splits at the edges of the image.
extern "C" __global__ void texture(cudaTextureObject_t x, const float *__restrict__ w,
                                   float *__restrict__ y, int channels, int height, int width,
                                   int filters, int window_height, int window_width, int out_height,
                                   int out_width, int stride, int padding, int dilation) {
  const int position = blockIdx.x * blockDim.x + threadIdx.x;
  const int filter = blockIdx.y, image = blockIdx.z;
  if (position >= out_height * out_width) return;
  const int row = position / out_width, column = position % out_width;
  float sum = 0.0f;
  for (int channel = 0; channel < channels; channel++)
    for (int i = 0; i < window_height; i++)
      for (int j = 0; j < window_width; j++) {
        const int r = row * stride - padding + i * dilation;
        const int c = column * stride - padding + j * dilation;
        const bool inside = r >= 0 && r < height && c >= 0 && c < width;
        const int from = ((image * channels + channel) * height + r) * width + c;
        const int weight = ((filter * channels + channel) * window_height + i) * window_width + j;
        sum = fmaf(tex1Dfetch<float>(x, inside ? from : -1), w[weight], sum);
      }
  y[(image * filters + filter) * out_height * out_width + position] = sum;
}
