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

// Weight of the thread's first vector of a norm over `num` vectors. It is read before the launch
// ahead is done; the other parameters are brought nearer.
__device__ __forceinline__ void fetch_norm(RowNorm norm, u32 num, float (&weight)[LEN]) {
    if (!norm.weight) return;
    if (threadIdx.x < num) load(weight, norm.weight, norm.type, threadIdx.x * LEN, num * LEN);
    for (u32 i = threadIdx.x; i < num; i += blockDim.x) {
        u64 bytes = (u64)i * LEN * (norm.type == 0 ? 4 : 2);
        if (i >= blockDim.x) prefetch((const char*)norm.weight + bytes);
        if (norm.bias) prefetch((const char*)norm.bias + bytes);
    }
}

// Copies a row of `num` vectors of 16 bytes to shared memory, normalised and rounded if there is a
// norm, of which `first` is from `fetch_norm`. A thread reads what it has written itself; then the
// block waits for all.
__device__ __forceinline__ void stage_row(
    RowNorm norm, const float (&first)[LEN], const T* x, uint4* row, u32 num) {
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
            if (i >= blockDim.x) load(w, norm.weight, norm.type, i * LEN, num * LEN);
            if (norm.bias) load(b, norm.bias, norm.type, i * LEN, num * LEN);
#pragma unroll
            for (int j = 0; j < LEN; ++j) {
                float weight = i < blockDim.x ? first[j] : w[j];
                v[j] = norm.bias ? fmaf((v[j] - mean) * r, weight, b[j]) : v[j] * r * weight;
            }
            Packed<LEN, T> packed;
            packed.pack(v);
            row[i] = make_uint4(packed.word[0], packed.word[1], packed.word[2], packed.word[3]);
        }
    }
    __syncthreads();
}

#define ROW_WARPS 8
// Pairs of 512 bytes of weights that a warp has in flight.
#define ROW_PAIRS 6

// The weights of a warp: rows `column`, `column + stride`, ... of b in pairs of 32 vectors, which
// are copied to a ring in shared memory. GATED: a pair has a part of row i and one of row n + i;
// otherwise two parts of one row. A thread reads what it has copied itself.
template <bool GATED> struct Weights {
    const T* row;
    u64 b_row, n, column, stride;
    u32 num, pair, slot;
    uint4* ring;

    __device__ __forceinline__ u32 num_pairs() const {
        u32 parts = (num + 31) / 32;
        return GATED ? parts : (parts + 1) / 2;
    }

    // Number of this thread's vector in part c of a pair.
    __device__ __forceinline__ static u32 vector(u32 pair, int c) {
        return threadIdx.x % 32 + 32 * (GATED ? pair : 2 * pair + c);
    }

    // Starts the copy of the next pair, if there is one.
    __device__ __forceinline__ void copy_next() {
        if (column < n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                u32 i = vector(pair, c);
                if (i < num)
                    copy_async(place(slot, c), row + (GATED ? c * n * b_row : 0) + i * LEN);
            }
            if (++pair == num_pairs()) {
                pair = 0;
                column += stride;
                row += stride * b_row;
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        slot = next(slot);
    }

    __device__ __forceinline__ uint4* place(u32 slot, int c) const {
        return ring + (2 * slot + c) * 32 + threadIdx.x % 32;
    }

    __device__ __forceinline__ static u32 next(u32 slot) {
        return slot + 1 == ROW_PAIRS ? 0 : slot + 1;
    }

    __device__ __forceinline__ static void copy_async(uint4* to, const T* from) {
        u32 shared = (u32)__cvta_generic_to_shared(to);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from)
                     : "memory");
    }

    // Waits for the oldest pair.
    __device__ __forceinline__ static void wait_for_pair() {
        asm volatile("cp.async.wait_group %0;" ::"n"(ROW_PAIRS - 1) : "memory");
    }
};

// y = norm(x) b (+ residual), for one row x and n rows of b with k elements each, which are whole
// vectors of 16 bytes. GATED: 2 n rows, and y = silu(gate) up of rows i and n + i. A warp computes
// an element of y after another; its weights are in flight all the time, the first of them before
// the launch ahead is done: that launch must not write weights or parameters of the norm. Sums have
// the order of `few_rows`.
//
// The grid takes half of the device's room, so that all blocks of the launch behind start
// while this one runs.
template <bool GATED>
__device__ __forceinline__ void multiply_row(
    RowNorm norm, const T* x, const T* b, u64 b_row, void* y, int y_type, const void* residual,
    u64 n, u64 k) {
    extern __shared__ uint4 row[];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, num = k / LEN;
    u64 column = (u64)blockIdx.x * ROW_WARPS + warp, stride = gridDim.x * ROW_WARPS;
    Weights<GATED> weights = {b + column * b_row, b_row, n, column, stride, num, 0, 0};
    weights.ring = row + num + warp * (2 * ROW_PAIRS * 32);
#pragma unroll
    for (int p = 0; p < ROW_PAIRS; ++p) weights.copy_next();
    float norm_weight[LEN];
    fetch_norm(norm, num, norm_weight);
    wait_for_launch_ahead();
    stage_row(norm, norm_weight, x, row, num);
    u32 slot = 0, num_pairs = weights.num_pairs();
    for (; column < n; column += stride) {
        // In flight while the sum is computed.
        float addend = residual && lane == 0 ? at(residual, y_type, column) : 0.0f;
        float sums[2] = {};
        for (u32 pair = 0; pair < num_pairs; ++pair) {
            weights.wait_for_pair();
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                u32 i = weights.vector(pair, c);
                if (i >= num) continue;
                float v[LEN], w[LEN], &sum = sums[GATED ? c : 0];
                unpack16(v, row[i]);
                unpack16(w, *weights.place(slot, c));
#pragma unroll
                for (int j = 0; j < LEN; ++j) sum = fmaf(v[j], w[j], sum);
            }
            weights.copy_next();
            slot = weights.next(slot);
        }
        float sum = warp_reduce(sums[0], sum_of<float>);
        if constexpr (GATED) {
            // Both are rounded first, as where they are stored.
            float gate = widen(narrow<T>(sum));
            float up = widen(narrow<T>(warp_reduce(sums[1], sum_of<float>)));
            if (lane == 0) put(y, y_type, column, gate * sigmoid_and_slope(gate).x * up);
        } else if (lane == 0)
            put(y, y_type, column, residual ? sum + addend : sum);
    }
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
