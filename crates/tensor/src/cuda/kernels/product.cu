// Matrix products for shapes and strides that cuBLASLt has no algorithm for: tiles of 32 x 32 in
// shared memory, one chain of fused multiply-adds over ascending k; and products of few rows.

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

// A norm; without a weight there is none, without a bias it is an RMSNorm.
struct RowNorm {
    const void* weight;
    const void* bias;
    int type;
    float eps;
};

constexpr int LEN = 16 / sizeof(T);

__device__ __forceinline__ void unpack16(float (&x)[LEN], uint4 four) {
    Packed<LEN, T> packed = {{four.x, four.y, four.z, four.w}};
    packed.unpack(x);
}

__device__ __forceinline__ void prefetch(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// Copies a row of `num` vectors of 16 bytes to shared memory, normalised and rounded if there is a
// norm. A thread reads what it has written itself; then the block waits for all.
__device__ __forceinline__ void stage_row(RowNorm norm, const T* x, uint4* row, u32 num) {
    __shared__ float shared[32];
    float total = 0.0f, squares = 0.0f, count = (float)(num * LEN), v[LEN];
    for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
        row[i] = ((const uint4*)x)[i];
        if (!norm.weight) continue;
        unpack16(v, row[i]);
#pragma unroll
        for (int j = 0; j < LEN; ++j) {
            total += v[j];
            squares = fmaf(v[j], v[j], squares);
        }
    }
    if (norm.weight) {
        float mean = norm.bias ? block_sum(total, shared) / count : 0.0f;
        if (norm.bias) {
            // The mean of squares of the centred row: mean(x^2) - mean^2 cancels.
            squares = 0.0f;
            for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
                unpack16(v, row[i]);
#pragma unroll
                for (int j = 0; j < LEN; ++j) squares = fmaf(v[j] - mean, v[j] - mean, squares);
            }
        }
        float r = 1.0f / sqrtf(block_sum(squares, shared) / count + norm.eps);
        for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
            float w[LEN], b[LEN];
            unpack16(v, row[i]);
            load(w, norm.weight, norm.type, i * LEN, num * LEN);
            if (norm.bias) load(b, norm.bias, norm.type, i * LEN, num * LEN);
#pragma unroll
            for (int j = 0; j < LEN; ++j)
                v[j] = norm.bias ? fmaf((v[j] - mean) * r, w[j], b[j]) : v[j] * r * w[j];
            Packed<LEN, T> packed;
            packed.pack(v);
            row[i] = make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]);
        }
    }
    __syncthreads();
}

#define ROW_WARPS 8

// y = norm(x) b (+ residual), for one row x and n rows of b with k elements each, which are whole
// vectors of 16 bytes; a warp per element of y. GATED: 2 n rows, and y = silu(gate) up of rows i
// and n + i. Sums have the order of `few_rows`. A warp has 4 KiB of weights in flight, the first of
// them before the launch ahead is done: that launch must not write weights or parameters of the
// norm.
template <bool GATED>
__device__ __forceinline__ void multiply_row(
    RowNorm norm, const T* x, const T* b, u64 b_row, void* y, int y_type, const void* residual,
    u64 n, u64 k) {
    constexpr int COLUMNS = GATED ? 2 : 1, BATCH = 8 / COLUMNS;
    extern __shared__ uint4 row[];
    u32 lane = threadIdx.x % 32, num = k / LEN;
    u64 column = (u64)blockIdx.x * ROW_WARPS + threadIdx.x / 32;
    bool exists = column < n;
    const T* weights[COLUMNS];
    Packed<LEN, T> packed[COLUMNS][BATCH] = {};
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        weights[c] = b + (column + c * n) * b_row;
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            u32 i = lane + 32 * s;
            if (exists && i < num) packed[c][s].read(weights[c] + i * LEN);
        }
    }
    if (norm.weight)
        for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
            u64 bytes = (u64)i * LEN * (norm.type == 0 ? 4 : 2);
            prefetch((const char*)norm.weight + bytes);
            if (norm.bias) prefetch((const char*)norm.bias + bytes);
        }
    wait_for_launch_ahead();
    stage_row(norm, x, row, num);
    if (!exists) return;
    float sums[COLUMNS] = {};
    for (u32 first = lane; first < num; first += 32 * BATCH) {
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            u32 i = first + 32 * s, next = i + 32 * BATCH;
            if (i >= num) continue;
            float v[LEN], w[COLUMNS][LEN];
            unpack16(v, row[i]);
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) {
                packed[c][s].unpack(w[c]);
                if (next < num) packed[c][s].read(weights[c] + next * LEN);
#pragma unroll
                for (int j = 0; j < LEN; ++j) sums[c] = fmaf(v[j], w[c][j], sums[c]);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sums[c] = warp_reduce(sums[c], sum_of<float>);
    if (lane > 0) return;
    if constexpr (GATED) {
        // Both are rounded first, as where they are stored.
        float gate = widen(narrow<T>(sums[0])), up = widen(narrow<T>(sums[1]));
        put(y, y_type, column, gate * sigmoid_and_slope(gate).x * up);
    } else put(y, y_type, column, residual ? sums[0] + at(residual, y_type, column) : sums[0]);
}

extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS, 4) row_product(
    RowNorm norm, const T* x, const T* b, u64 b_row, void* y, int y_type, const void* residual,
    u64 n, u64 k) {
    multiply_row<false>(norm, x, b, b_row, y, y_type, residual, n, k);
}

extern "C" __global__ void __launch_bounds__(32 * ROW_WARPS, 4) gated_row_product(
    RowNorm norm, const T* x, const T* b, u64 b_row, void* y, int y_type, const void* residual,
    u64 n, u64 k) {
    multiply_row<true>(norm, x, b, b_row, y, y_type, residual, n, k);
}
