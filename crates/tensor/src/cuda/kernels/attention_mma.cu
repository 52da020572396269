// Causal grouped-query attention on tensor cores (mma.sync), for bf16 and f16 and heads of a
// multiple of 16 elements; the order of work is that of attention.cu. Probabilities and gradients
// of scores are rounded to T for their products; sums are float.
//
// A block of four warps holds 64 rows, 16 a warp, and streams tiles of rows through two buffers
// that cp.async fills. Thread l of a warp holds, of each 16 x 8 tile of scores, columns 2 (l % 4)
// and the next of rows l / 4 and l / 4 + 8.

#define ROWS 64
#define KEYS 64
#define TILE 32
#define THREADS 128
#define STRIDE (HEAD_DIM + 8)
#define STEPS (HEAD_DIM / 16)
#define WARP_THREAD (threadIdx.x % 32)
#define WARP_ROW (threadIdx.x / 32 * 16)
#define GROUP_ROW (WARP_THREAD / 4)
#define PAIR (WARP_THREAD % 4 * 2)
#define LOG2_E 1.4426950408889634f

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two floats as a pair of T, the first in the low half.
template <class E> __device__ __forceinline__ u32 pack(float low, float high);
template <> __device__ __forceinline__ u32 pack<bf16>(float low, float high) {
    u32 d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}
template <> __device__ __forceinline__ u32 pack<f16>(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// c += a b for tiles of 16 x 16 and 16 x 8.
template <class E>
__device__ __forceinline__ void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);
#define MMA(type, name)                                                                          \
    template <>                                                                                  \
    __device__ __forceinline__ void mma<type>(                                                   \
        float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {                                      \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 "              \
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                     \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                            \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));            \
    }
MMA(bf16, "bf16")
MMA(f16, "f16")

__device__ __forceinline__ u32 shared_address(const T* p) {
    return (u32)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void load_matrices(u32 (&r)[4], const T* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&r)[4], const T* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(p)));
}

// Starts a copy of N rows to shared memory; rows from `end` on become zero.
template <int N>
__device__ __forceinline__ void start_copy(
    T* tile, const T* rows, u64 stride, u32 first, u32 end) {
    constexpr int PER_ROW = HEAD_DIM / 8;
    for (u32 e = threadIdx.x; e < N * PER_ROW; e += THREADS) {
        u32 r = e / PER_ROW, c = e % PER_ROW * 8;
        bool exists = first + r < end;
        const T* from = rows + (exists ? first + r : 0) * stride + c;
        int bytes = exists ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :
                     : "r"(shared_address(tile + r * STRIDE + c)), "l"(from), "r"(bytes));
    }
}

__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void wait_groups() {
    asm volatile("cp.async.wait_group %0;" : : "n"(N));
}

// s = x y^T for the 16 rows of this warp and N rows of y.
template <int N>
__device__ __forceinline__ void dots(float (&s)[N / 8][4], const T* x, const T* y) {
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
        for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
    u32 matrix = WARP_THREAD / 8, row = WARP_THREAD % 8;
    x += (WARP_ROW + row + matrix % 2 * 8) * STRIDE + matrix / 2 * 8;
    y += (row + matrix / 2 * 8) * STRIDE + matrix % 2 * 8;
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        u32 a[4];
        load_matrices(a, x + step * 16);
#pragma unroll
        for (int n = 0; n < N / 16; ++n) {
            u32 b[4];
            load_matrices(b, y + n * 16 * STRIDE + step * 16);
            mma<T>(s[2 * n], a, b[0], b[1]);
            mma<T>(s[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// acc += w y, with the weights of N rows of y in the layout of scores.
template <int N>
__device__ __forceinline__ void accumulate(
    float (&acc)[HEAD_DIM / 8][4], const float (&w)[N / 8][4], const T* y) {
    u32 matrix = WARP_THREAD / 8, row = WARP_THREAD % 8;
    y += (row + matrix % 2 * 8) * STRIDE + matrix / 2 * 8;
#pragma unroll
    for (int step = 0; step < N / 16; ++step) {
        u32 a[4] = {pack<T>(w[2 * step][0], w[2 * step][1]),
                    pack<T>(w[2 * step][2], w[2 * step][3]),
                    pack<T>(w[2 * step + 1][0], w[2 * step + 1][1]),
                    pack<T>(w[2 * step + 1][2], w[2 * step + 1][3])};
#pragma unroll
        for (int n = 0; n < STEPS; ++n) {
            u32 b[4];
            load_matrices_transposed(b, y + step * 16 * STRIDE + n * 16);
            mma<T>(acc[2 * n], a, b[0], b[1]);
            mma<T>(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// Stores the 16 rows of this warp, times a factor for each of a thread's two rows.
__device__ __forceinline__ void store_rows(
    T* rows, u64 stride, u32 first, u32 end, const float (&acc)[HEAD_DIM / 8][4], float low,
    float high) {
    u32 r = first + WARP_ROW + GROUP_ROW;
#pragma unroll
    for (int n = 0; n < HEAD_DIM / 8; ++n) {
        u32 c = n * 8 + PAIR;
        if (r < end) *(u32*)(rows + r * stride + c) = pack<T>(acc[n][0] * low, acc[n][1] * low);
        if (r + 8 < end)
            *(u32*)(rows + (r + 8) * stride + c) = pack<T>(acc[n][2] * high, acc[n][3] * high);
    }
}

__device__ __forceinline__ float sum4(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

__device__ __forceinline__ float max4(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// grid: (query tiles, heads, sequences). Queries are the positions from first_query on.
extern "C" __global__ void __launch_bounds__(THREADS) attention_forward(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    u32 first_query, float scale, Dropout mask, T* out, float* lse) {
    extern __shared__ __align__(16) unsigned char memory[];
    T* qs = (T*)memory;
    T* buffers = qs + ROWS * STRIDE;
    u32 tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
    u32 kv_head = head / (shape.heads / shape.kv_heads), num_keys = first_query + shape.tokens;
    u32 first = tile * ROWS;
    q += (u64)sequence * shape.tokens * q_stride + head * HEAD_DIM;
    k += (u64)sequence * num_keys * k_stride + kv_head * HEAD_DIM;
    v += (u64)sequence * num_keys * v_stride + kv_head * HEAD_DIM;
    u64 element = first_element(mask, shape, sequence, head);
    start_copy<ROWS>(qs, q, q_stride, first, shape.tokens);
    start_copy<KEYS>(buffers, k, k_stride, 0, num_keys);
    start_copy<KEYS>(buffers + KEYS * STRIDE, v, v_stride, 0, num_keys);
    end_group();
    float acc[HEAD_DIM / 8][4] = {}, largest[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {};
    float scale2 = scale * LOG2_E;
    u32 last = min(num_keys, first_query + first + ROWS);
    u32 query[2] = {first_query + first + WARP_ROW + GROUP_ROW, 0};
    query[1] = query[0] + 8;
    for (u32 key = 0, stage = 0; key < last; key += KEYS, stage ^= 1) {
        T* buffer = buffers + stage * 2 * KEYS * STRIDE;
        T* next_buffer = buffers + (stage ^ 1) * 2 * KEYS * STRIDE;
        if (key + KEYS < last) {
            start_copy<KEYS>(next_buffer, k, k_stride, key + KEYS, num_keys);
            start_copy<KEYS>(next_buffer + KEYS * STRIDE, v, v_stride, key + KEYS, num_keys);
        }
        end_group();
        wait_groups<1>();
        __syncthreads();
        float s[KEYS / 8][4];
        dots<KEYS>(s, qs, buffer);
        bool masked = key + KEYS > first_query + first + WARP_ROW + 1;
        float next[2] = {largest[0], largest[1]};
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (masked && key + n * 8 + PAIR + i % 2 > query[i / 2]) s[n][i] = -INFINITY_F;
                next[i / 2] = fmaxf(next[i / 2], s[n][i]);
            }
        float rescale[2], add[2] = {}, shift[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            next[r] = max4(next[r]);
            rescale[r] = exp2_fast((largest[r] - next[r]) * scale2);
            largest[r] = next[r];
            shift[r] = next[r] * scale2;
        }
#pragma unroll
        for (int n = 0; n < KEYS / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float p = exp2_fast(fmaf(s[n][i], scale2, -shift[i / 2]));
                add[i / 2] += p;
                if (mask.threshold)
                    p *= factor(mask, shape, element, query[i / 2], key + n * 8 + PAIR + i % 2);
                s[n][i] = p;
            }
#pragma unroll
        for (int r = 0; r < 2; ++r) sum[r] = fmaf(sum[r], rescale[r], sum4(add[r]));
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[n][i] *= rescale[i / 2];
        accumulate<KEYS>(acc, s, buffer + KEYS * STRIDE);
        __syncthreads();
    }
    u64 width = (u64)shape.heads * HEAD_DIM;
    store_rows(out + (u64)sequence * shape.tokens * width + head * HEAD_DIM, width, first,
               shape.tokens, acc, 1.0f / sum[0], 1.0f / sum[1]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        u32 token = first + WARP_ROW + GROUP_ROW + 8 * r;
        if (PAIR == 0 && token < shape.tokens)
            lse[((u64)sequence * shape.heads + head) * shape.tokens + token] =
                largest[r] * scale + logf(sum[r]);
    }
}

// Probability of a visible score, and the gradient of the score.
__device__ __forceinline__ float2 score_gradient(
    bool visible, float score, float dp, float scale, float lse, float delta, float keep) {
    if (!visible) return make_float2(0.0f, 0.0f);
    float p = exp2_fast(fmaf(score, scale, -lse) * LOG2_E), kept = p * keep;
    return make_float2(kept, (kept * dp - p * delta) * scale);
}

// grid: (query tiles, heads, sequences). dQ += dS K over ascending key tiles.
extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_queries(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    float scale, Dropout mask, const float* lse, const float* delta, const T* dout, T* dq,
    u64 dq_stride) {
    extern __shared__ __align__(16) unsigned char memory[];
    T *qs = (T*)memory, *dos = qs + ROWS * STRIDE;
    T* buffers = dos + ROWS * STRIDE;
    u32 tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
    u32 kv_head = head / (shape.heads / shape.kv_heads), first = tile * ROWS;
    u64 row = (u64)sequence * shape.tokens, width = (u64)shape.heads * HEAD_DIM;
    u64 stats = ((u64)sequence * shape.heads + head) * shape.tokens;
    q += row * q_stride + head * HEAD_DIM;
    k += row * k_stride + kv_head * HEAD_DIM;
    v += row * v_stride + kv_head * HEAD_DIM;
    dout += row * width + head * HEAD_DIM;
    dq += row * dq_stride + head * HEAD_DIM;
    u64 element = first_element(mask, shape, sequence, head);
    start_copy<ROWS>(qs, q, q_stride, first, shape.tokens);
    start_copy<ROWS>(dos, dout, width, first, shape.tokens);
    start_copy<TILE>(buffers, k, k_stride, 0, shape.tokens);
    start_copy<TILE>(buffers + TILE * STRIDE, v, v_stride, 0, shape.tokens);
    end_group();
    u32 query[2];
    float row_lse[2], row_delta[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        query[r] = first + WARP_ROW + GROUP_ROW + 8 * r;
        bool exists = query[r] < shape.tokens;
        row_lse[r] = exists ? lse[stats + query[r]] : 0.0f;
        row_delta[r] = exists ? delta[stats + query[r]] : 0.0f;
    }
    float acc[HEAD_DIM / 8][4] = {};
    u32 last = min(shape.tokens, first + ROWS);
    for (u32 key = 0, stage = 0; key < last; key += TILE, stage ^= 1) {
        T* buffer = buffers + stage * 2 * TILE * STRIDE;
        T* next_buffer = buffers + (stage ^ 1) * 2 * TILE * STRIDE;
        if (key + TILE < last) {
            start_copy<TILE>(next_buffer, k, k_stride, key + TILE, shape.tokens);
            start_copy<TILE>(next_buffer + TILE * STRIDE, v, v_stride, key + TILE, shape.tokens);
        }
        end_group();
        wait_groups<1>();
        __syncthreads();
        float s[TILE / 8][4], dp[TILE / 8][4];
        dots<TILE>(s, qs, buffer);
        dots<TILE>(dp, dos, buffer + TILE * STRIDE);
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                u32 at_query = query[i / 2], at_key = key + n * 8 + PAIR + i % 2;
                bool visible = at_query < shape.tokens && at_key <= at_query;
                float keep = visible ? factor(mask, shape, element, at_query, at_key) : 0.0f;
                s[n][i] = score_gradient(visible, s[n][i], dp[n][i], scale, row_lse[i / 2],
                                         row_delta[i / 2], keep).y;
            }
        accumulate<TILE>(acc, s, buffer);
        __syncthreads();
    }
    store_rows(dq, dq_stride, first, shape.tokens, acc, 1.0f, 1.0f);
}

// grid: (key tiles, key heads, sequences). dK and dV over the query heads of the group, then query
// tiles, both ascending.
extern "C" __global__ void __launch_bounds__(THREADS) attention_backward_keys(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    float scale, Dropout mask, const float* lse, const float* delta, const T* dout, T* dk, T* dv,
    u64 dkv_stride) {
    extern __shared__ __align__(16) unsigned char memory[];
    T *ks = (T*)memory, *vs = ks + ROWS * STRIDE;
    T* buffers = vs + ROWS * STRIDE;
    u32 kv_head = blockIdx.y, sequence = blockIdx.z, first = blockIdx.x * ROWS;
    u32 group = shape.heads / shape.kv_heads, first_head = kv_head * group;
    u64 row = (u64)sequence * shape.tokens, width = (u64)shape.heads * HEAD_DIM;
    k += row * k_stride + kv_head * HEAD_DIM;
    v += row * v_stride + kv_head * HEAD_DIM;
    q += row * q_stride + first_head * HEAD_DIM;
    dout += row * width + first_head * HEAD_DIM;
    u32 tiles = (shape.tokens - first + TILE - 1) / TILE;
    start_copy<ROWS>(ks, k, k_stride, first, shape.tokens);
    start_copy<ROWS>(vs, v, v_stride, first, shape.tokens);
    start_copy<TILE>(buffers, q, q_stride, first, shape.tokens);
    start_copy<TILE>(buffers + TILE * STRIDE, dout, width, first, shape.tokens);
    end_group();
    float sum_k[HEAD_DIM / 8][4] = {}, sum_v[HEAD_DIM / 8][4] = {};
    for (u32 item = 0, stage = 0; item < group * tiles; ++item, stage ^= 1) {
        T* buffer = buffers + stage * 2 * TILE * STRIDE;
        T* next_buffer = buffers + (stage ^ 1) * 2 * TILE * STRIDE;
        if (item + 1 < group * tiles) {
            u32 head = (item + 1) / tiles, query = first + (item + 1) % tiles * TILE;
            start_copy<TILE>(
                next_buffer, q + head * HEAD_DIM, q_stride, query, shape.tokens);
            start_copy<TILE>(next_buffer + TILE * STRIDE, dout + head * HEAD_DIM, width,
                             query, shape.tokens);
        }
        end_group();
        wait_groups<1>();
        __syncthreads();
        u32 head = first_head + item / tiles, query = first + item % tiles * TILE;
        u64 stats = ((u64)sequence * shape.heads + head) * shape.tokens;
        u64 element = first_element(mask, shape, sequence, head);
        const T *qs = buffer, *dos = qs + TILE * STRIDE;
        float s[TILE / 8][4], dp[TILE / 8][4];
        dots<TILE>(s, ks, qs);
        dots<TILE>(dp, vs, dos);
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u32 at_query = query + n * 8 + PAIR + j;
                bool exists = at_query < shape.tokens;
                float l = exists ? lse[stats + at_query] : 0.0f;
                float d = exists ? delta[stats + at_query] : 0.0f;
#pragma unroll
                for (int i = j; i < 4; i += 2) {
                    u32 at_key = first + WARP_ROW + GROUP_ROW + i / 2 * 8;
                    bool visible = exists && at_key <= at_query;
                    float keep = visible ? factor(mask, shape, element, at_query, at_key) : 0.0f;
                    float2 both =
                        score_gradient(visible, s[n][i], dp[n][i], scale, l, d, keep);
                    s[n][i] = both.x;
                    dp[n][i] = both.y;
                }
            }
        accumulate<TILE>(sum_v, s, dos);
        accumulate<TILE>(sum_k, dp, qs);
        __syncthreads();
    }
    u64 at_head = row * dkv_stride + kv_head * HEAD_DIM;
    store_rows(dk + at_head, dkv_stride, first, shape.tokens, sum_k, 1.0f, 1.0f);
    store_rows(dv + at_head, dkv_stride, first, shape.tokens, sum_v, 1.0f, 1.0f);
}
