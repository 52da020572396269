// Sums over rows for every column: gradients of biases and of the weights of norms. Rows are cut
// into chunks of CHUNK_ROWS; a chunk is summed by one block, and chunks are added in ascending
// order, so the bits do not depend on the schedule.

#define CHUNK_ROWS 256
#define COLS 32
#define LINES 8

// mode 0: dy. mode 1: dy * x * rstd (RMSNorm). mode 2: dy * (x - mean) * rstd (LayerNorm), and dy
// in `second` where it is given.
extern "C" __global__ void column_partials(
    int mode, const T* x, const T* dy, const float* mean, const float* rstd, u64 rows, u64 width,
    float* first, float* second) {
    __shared__ float sums[2][LINES][COLS];
    u32 tx = threadIdx.x % COLS, ty = threadIdx.x / COLS;
    u64 col = (u64)blockIdx.x * COLS + tx, chunk = blockIdx.y;
    u64 end = min(rows, (chunk + 1) * CHUNK_ROWS);
    float a = 0.0f, b = 0.0f;
    if (col < width)
        for (u64 row = chunk * CHUNK_ROWS + ty; row < end; row += LINES) {
            float d = widen(dy[row * width + col]);
            if (mode == 0) a += d;
            else {
                float v = widen(x[row * width + col]) - (mode == 2 ? mean[row] : 0.0f);
                a = fmaf(d, v * rstd[row], a);
                b += d;
            }
        }
    sums[0][ty][tx] = a;
    sums[1][ty][tx] = b;
    __syncthreads();
    if (ty == 0 && col < width) {
        for (int line = 1; line < LINES; ++line) { a += sums[0][line][tx]; b += sums[1][line][tx]; }
        if (first) first[chunk * width + col] = a;
        if (second) second[chunk * width + col] = b;
    }
}

extern "C" __global__ void add_partials(const float* partials, u64 chunks, u64 width, float* out) {
    u64 col = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= width) return;
    float sum = 0.0f;
    for (u64 chunk = 0; chunk < chunks; ++chunk) sum += partials[chunk * width + col];
    out[col] += sum;
}
