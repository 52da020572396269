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
