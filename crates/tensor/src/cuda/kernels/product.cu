// Matrix product for shapes and strides that cuBLASLt has no algorithm for: tiles of 32 x 32 in
// shared memory, one chain of fused multiply-adds over ascending k.

#define TILE 32

// c (= or +=) a b with a m x k, b k x n; element (i, j) of an operand is at i * row + j * col.
extern "C" __global__ void product(
    const T* a, u64 a_row, u64 a_col, const T* b, u64 b_row, u64 b_col, void* c, int c_type,
    u64 c_row, u64 m, u64 n, u64 k, int add) {
    __shared__ float left[TILE][TILE + 1], right[TILE][TILE + 1];
    u32 tx = threadIdx.x % TILE, ty = threadIdx.x / TILE;
    u64 row = (u64)blockIdx.y * TILE, col = (u64)blockIdx.x * TILE;
    float sums[4] = {};
    for (u64 p = 0; p < k; p += TILE) {
        for (u32 r = ty; r < TILE; r += 8) {
            u64 i = row + r, q = p + tx;
            left[r][tx] = i < m && q < k ? widen(a[i * a_row + q * a_col]) : 0.0f;
            u64 kk = p + r, j = col + tx;
            right[r][tx] = kk < k && j < n ? widen(b[kk * b_row + j * b_col]) : 0.0f;
        }
        __syncthreads();
        for (u32 q = 0; q < TILE; ++q)
#pragma unroll
            for (u32 s = 0; s < 4; ++s)
                sums[s] = fmaf(left[ty + 8 * s][q], right[q][tx], sums[s]);
        __syncthreads();
    }
    for (u32 s = 0; s < 4; ++s) {
        u64 i = row + ty + 8 * s, j = col + tx;
        if (i < m && j < n) {
            float old = add ? at(c, c_type, i * c_row + j) : 0.0f;
            put(c, c_type, i * c_row + j, old + sums[s]);
        }
    }
}

// c = a b (+ residual) for up to ROWS rows of a, where b is the transpose of a stored n x k matrix:
// a warp reads a row of it once, 16 bytes a thread with many in flight, for a column of c. Each
// thread has one chain of fused multiply-adds over ascending k; then the tree of `warp_reduce`.
// Rows of both operands are aligned to 16 bytes and whole.
template <int ROWS>
__device__ __forceinline__ void few_rows(
    const T* a, u64 a_row, const T* b, u64 b_row, void* c, int c_type, u64 c_row,
    const void* residual, u32 m, u64 n, u64 k) {
    constexpr int LEN = 16 / sizeof(T), BATCH = 8, STEP = 32 * LEN;
    u64 column = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    u32 lane = threadIdx.x % 32;
    if (column >= n) return;
    const T* weights = b + column * b_row;
    float sums[ROWS] = {};
    for (u64 first = lane * LEN; first < k; first += STEP * BATCH) {
        Packed<LEN, T> packed[BATCH] = {};
#pragma unroll
        for (int s = 0; s < BATCH; ++s)
            if (first + STEP * s < k) packed[s].read(weights + first + STEP * s);
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            u64 p = first + STEP * s;
            if (p >= k) break;
            float w[LEN];
            packed[s].unpack(w);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (ROWS > 1 && r >= m) break;
                float x[LEN];
                load<true>(x, a + r * a_row, p, k);
#pragma unroll
                for (int j = 0; j < LEN; ++j) sums[r] = fmaf(x[j], w[j], sums[r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (ROWS > 1 && r >= m) break;
        float sum = warp_reduce(sums[r], sum_of<float>);
        if (lane > 0) continue;
        u64 place = r * c_row + column;
        put(c, c_type, place, residual ? sum + at(residual, c_type, place) : sum);
    }
}

extern "C" __global__ void one_row(
    const T* a, u64 a_row, const T* b, u64 b_row, void* c, int c_type, u64 c_row,
    const void* residual, u32 m, u64 n, u64 k) {
    few_rows<1>(a, a_row, b, b_row, c, c_type, c_row, residual, m, n, k);
}

extern "C" __global__ void up_to_eight_rows(
    const T* a, u64 a_row, const T* b, u64 b_row, void* c, int c_type, u64 c_row,
    const void* residual, u32 m, u64 n, u64 k) {
    few_rows<8>(a, a_row, b, b_row, c, c_type, c_row, residual, m, n, k);
}
