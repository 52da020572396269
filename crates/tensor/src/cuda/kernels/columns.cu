// Sums over rows for every column: gradients of biases and of the weights of norms. A block sums
// CHUNK_ROWS rows of CHUNK_COLS columns, and chunks are added by one fixed tree, so the bits do not
// depend on the schedule.

#define CHUNK_ROWS 128
#define CHUNK_COLS 256
#define LINES 8

// Adds the values of all lines, of eight columns a thread, and stores the chunk's sums.
__device__ __forceinline__ void store_sums(
    const float (&x)[8], float (*sums)[CHUNK_COLS], float* partials, u64 width) {
    u64 col = (u64)blockIdx.x * CHUNK_COLS + threadIdx.x;
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[threadIdx.x / 32][threadIdx.x % 32 * 8 + j] = x[j];
    __syncthreads();
    if (partials && col < width) {
        float total = sums[0][threadIdx.x];
#pragma unroll
        for (int line = 1; line < LINES; ++line) total += sums[line][threadIdx.x];
        partials[blockIdx.y * width + col] = total;
    }
    __syncthreads();
}

// mode 0: dy. mode 1: dy * x * rstd (RMSNorm). mode 2: dy * (x - mean) * rstd (LayerNorm), and dy
// in `second`. Rows of a batch are in flight together.
template <int MODE, bool WHOLE>
__device__ __forceinline__ void sum_chunk(
    const T* x, const T* dy, const float* mean, const float* rstd, u64 rows, u64 width,
    float* first, float* second, float (*sums)[CHUNK_COLS]) {
    constexpr int BATCH = WHOLE ? (MODE ? 4 : 8) : 1;
    u64 start = (u64)blockIdx.y * CHUNK_ROWS, end = min(rows, start + CHUNK_ROWS);
    u64 col = (u64)blockIdx.x * CHUNK_COLS + threadIdx.x % 32 * 8;
    float a[8] = {}, b[8] = {};
    if (col < width)
        for (u64 row = start + threadIdx.x / 32; row < end; row += LINES * BATCH) {
            Packed<8, T> packed_dy[BATCH], packed_x[BATCH];
            float means[BATCH], factors[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                u64 at = row + k * LINES;
                if (at >= end) continue;
                packed_dy[k].template fetch<WHOLE>(dy + at * width, col, width);
                if (MODE == 0) continue;
                packed_x[k].template fetch<WHOLE>(x + at * width, col, width);
                means[k] = MODE == 2 ? mean[at] : 0.0f;
                factors[k] = rstd[at];
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                if (row + k * LINES >= end) continue;
                float d[8], v[8];
                packed_dy[k].unpack(d);
                if (MODE) packed_x[k].unpack(v);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    if (MODE == 0) a[j] += d[j];
                    else a[j] = fmaf(d[j], (v[j] - means[k]) * factors[k], a[j]);
                    if (MODE == 2) b[j] += d[j];
                }
            }
        }
    store_sums(a, sums, first, width);
    if (MODE == 2) store_sums(b, sums, second, width);
}

extern "C" __global__ void __launch_bounds__(32 * LINES) column_partials(
    int mode, const T* x, const T* dy, const float* mean, const float* rstd, u64 rows, u64 width,
    float* first, float* second) {
    alignas(16) __shared__ float sums[LINES][CHUNK_COLS];
    bool whole = (width % 8 | (u64)x % 16 | (u64)dy % 16) == 0;
#define SUM_CHUNK(MODE)                                                                          \
    if (whole) sum_chunk<MODE, true>(x, dy, mean, rstd, rows, width, first, second, sums);       \
    else sum_chunk<MODE, false>(x, dy, mean, rstd, rows, width, first, second, sums)
    if (mode == 0) { SUM_CHUNK(0); }
    else if (mode == 1) { SUM_CHUNK(1); }
    else { SUM_CHUNK(2); }
}

// 32 columns a block, 32 lines of chunks; adds the sums to `first` and, from the second half of the
// partial sums, to `second`.
extern "C" __global__ void __launch_bounds__(1024) add_partials(
    const float* partials, u64 chunks, u64 width, float* first, float* second) {
    __shared__ float sums[32][33];
    u32 line = threadIdx.x / 32, thread = threadIdx.x % 32;
    u64 col = (u64)blockIdx.x * 32;
    float sum = 0.0f, *out = blockIdx.y ? second : first;
    if (!out) return;
    partials += blockIdx.y * chunks * width;
    if (col + thread < width)
#pragma unroll 4
        for (u64 chunk = line; chunk < chunks; chunk += 32)
            sum += partials[chunk * width + col + thread];
    sums[line][thread] = sum;
    __syncthreads();
    sum = warp_reduce(sums[thread][line], sum_of<float>);
    if (thread == 0 && col + line < width) out[col + line] += sum;
}
