// Causal grouped-query attention by tiles (FlashAttention, Dao et al. 2022) on the vector units,
// for any HEAD_DIM and type; attention_mma.cu has the tensor-core version.
//
// A block holds 64 stationary rows and streams tiles of 32 rows: forward and the gradient of
// queries hold queries and stream keys, the gradient of keys and values holds keys and streams
// queries of all heads of the group. Every sum has one owner and one order, without atomics.
// Thread (ty, tx) of 16 x 16 owns rows 4 ty .. 4 ty + 3 and every sixteenth column from tx on.

#define ROWS 64
#define COLS 32
#define PAD (HEAD_DIM + 1)
#define PARTS ((HEAD_DIM + 15) / 16)
#define TX (threadIdx.x % 16)
#define TY (threadIdx.x / 16)

// Copies `count` rows of HEAD_DIM to shared memory, as float; missing rows become zero.
__device__ __forceinline__ void load_tile(
    float* tile, const T* rows, u64 stride, u32 first, u32 count, u32 end) {
    for (u32 e = threadIdx.x; e < count * HEAD_DIM; e += blockDim.x) {
        u32 r = e / HEAD_DIM, c = e % HEAD_DIM;
        tile[r * PAD + c] = first + r < end ? widen(rows[(first + r) * stride + c]) : 0.0f;
    }
}

// Inner products of the four own rows with the two own columns.
__device__ __forceinline__ void dots(float (&s)[4][2], const float* rows, const float* cols) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i][0] = s[i][1] = 0.0f;
#pragma unroll 4
    for (int c = 0; c < HEAD_DIM; ++c) {
        float a = cols[TX * PAD + c], b = cols[(TX + 16) * PAD + c];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float r = rows[(TY * 4 + i) * PAD + c];
            s[i][0] = fmaf(r, a, s[i][0]);
            s[i][1] = fmaf(r, b, s[i][1]);
        }
    }
}

// acc += weights tile, for the four own rows.
__device__ __forceinline__ void accumulate(
    float (&acc)[4][PARTS], const float* weights, const float* tile) {
#pragma unroll 4
    for (int c = 0; c < COLS; ++c) {
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = weights[(TY * 4 + i) * (COLS + 1) + c];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            int col = TX + 16 * part;
            float v = col < HEAD_DIM ? tile[c * PAD + col] : 0.0f;
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[i][part] = fmaf(w[i], v, acc[i][part]);
        }
    }
}

__device__ __forceinline__ void store_rows(
    T* rows, u64 stride, u32 first, u32 end, const float (&acc)[4][PARTS]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        u32 r = first + TY * 4 + i;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            int col = TX + 16 * part;
            if (r < end && col < HEAD_DIM) rows[r * stride + col] = narrow<T>(acc[i][part]);
        }
    }
}

__device__ __forceinline__ float sum16(float x) {
#pragma unroll
    for (int o = 8; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

__device__ __forceinline__ float max16(float x) {
#pragma unroll
    for (int o = 8; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

// grid: (query tiles, heads, sequences). Queries are the positions from first_query on.
extern "C" __global__ void __launch_bounds__(256) attention_forward(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    u32 first_query, float scale, Dropout mask, T* out, float* lse) {
    extern __shared__ float memory[];
    float *qs = memory, *ks = qs + ROWS * PAD, *vs = ks + COLS * PAD, *ps = vs + COLS * PAD;
    u32 tile = gridDim.x - 1 - blockIdx.x, head = blockIdx.y, sequence = blockIdx.z;
    u32 kv_head = head / (shape.heads / shape.kv_heads), num_keys = first_query + shape.tokens;
    u32 first = tile * ROWS;
    q += (u64)sequence * shape.tokens * q_stride + head * HEAD_DIM;
    k += (u64)sequence * num_keys * k_stride + kv_head * HEAD_DIM;
    v += (u64)sequence * num_keys * v_stride + kv_head * HEAD_DIM;
    u64 element = first_element(mask, shape, sequence, head);
    load_tile(qs, q, q_stride, first, ROWS, shape.tokens);
    float acc[4][PARTS] = {}, largest[4], sum[4];
    for (int i = 0; i < 4; ++i) { largest[i] = -INFINITY_F; sum[i] = 0.0f; }
    u32 last = min(num_keys, first_query + first + ROWS);
    for (u32 key = 0; key < last; key += COLS) {
        __syncthreads();
        load_tile(ks, k, k_stride, key, COLS, num_keys);
        load_tile(vs, v, v_stride, key, COLS, num_keys);
        __syncthreads();
        float s[4][2];
        dots(s, qs, ks);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u32 query = first_query + first + TY * 4 + i;
            float next = largest[i];
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                s[i][j] = key + TX + 16 * j <= query ? s[i][j] * scale : -INFINITY_F;
                next = fmaxf(next, s[i][j]);
            }
            next = max16(next);
            float rescale = expf(largest[i] - next), add = 0.0f;
            largest[i] = next;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u32 column = TX + 16 * j;
                float p = expf(s[i][j] - next);
                add += p;
                p *= factor(mask, shape, element, query, key + column);
                ps[(TY * 4 + i) * (COLS + 1) + column] = p;
            }
            sum[i] = fmaf(sum[i], rescale, sum16(add));
#pragma unroll
            for (int part = 0; part < PARTS; ++part) acc[i][part] *= rescale;
        }
        __syncthreads();
        accumulate(acc, ps, vs);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float inverse = 1.0f / sum[i];
#pragma unroll
        for (int part = 0; part < PARTS; ++part) acc[i][part] *= inverse;
        u32 r = first + TY * 4 + i;
        if (TX == 0 && r < shape.tokens)
            lse[((u64)sequence * shape.heads + head) * shape.tokens + r] =
                largest[i] + logf(sum[i]);
    }
    u64 width = (u64)shape.heads * HEAD_DIM;
    store_rows(out + (u64)sequence * shape.tokens * width + head * HEAD_DIM, width, first,
               shape.tokens, acc);
}

// One warp a (row, head): D = sum of dout * out.
extern "C" __global__ void attention_delta(
    const T* out, const T* dout, u64 num_rows, Shape shape, float* delta) {
    u64 item = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    u32 thread = threadIdx.x % 32;
    if (item >= num_rows * shape.heads) return;
    float sum = 0.0f;
    for (u32 c = thread; c < HEAD_DIM; c += 32)
        sum = fmaf(widen(out[item * HEAD_DIM + c]), widen(dout[item * HEAD_DIM + c]), sum);
#pragma unroll
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    u64 row = item / shape.heads, head = item % shape.heads;
    u64 sequence = row / shape.tokens, token = row % shape.tokens;
    if (thread == 0) delta[(sequence * shape.heads + head) * shape.tokens + token] = sum;
}

// Turns a score and the product dout V^T into the kept probability and the score's gradient.
__device__ __forceinline__ float2 score_gradient(
    bool visible, float score, float dp, float scale, float lse, float delta, float keep) {
    if (!visible) return make_float2(0.0f, 0.0f);
    float p = expf(fmaf(score, scale, -lse)), kept = p * keep;
    return make_float2(kept, (kept * dp - p * delta) * scale);
}

// grid: (query tiles, heads, sequences). dQ += dS K over ascending key tiles.
extern "C" __global__ void __launch_bounds__(256) attention_backward_queries(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    float scale, Dropout mask, const float* lse, const float* delta, const T* dout, T* dq,
    u64 dq_stride) {
    extern __shared__ float memory[];
    float *qs = memory, *dos = qs + ROWS * PAD, *ks = dos + ROWS * PAD, *vs = ks + COLS * PAD;
    float* ds = vs + COLS * PAD;
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
    load_tile(qs, q, q_stride, first, ROWS, shape.tokens);
    load_tile(dos, dout, width, first, ROWS, shape.tokens);
    float acc[4][PARTS] = {};
    u32 last = min(shape.tokens, first + ROWS);
    for (u32 key = 0; key < last; key += COLS) {
        __syncthreads();
        load_tile(ks, k, k_stride, key, COLS, shape.tokens);
        load_tile(vs, v, v_stride, key, COLS, shape.tokens);
        __syncthreads();
        float s[4][2], dp[4][2];
        dots(s, qs, ks);
        dots(dp, dos, vs);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u32 query = first + TY * 4 + i;
            bool exists = query < shape.tokens;
            float l = exists ? lse[stats + query] : 0.0f, d = exists ? delta[stats + query] : 0.0f;
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u32 column = key + TX + 16 * j;
                bool visible = exists && column <= query;
                float keep = visible ? factor(mask, shape, element, query, column) : 0.0f;
                ds[(TY * 4 + i) * (COLS + 1) + TX + 16 * j] =
                    score_gradient(visible, s[i][j], dp[i][j], scale, l, d, keep).y;
            }
        }
        __syncthreads();
        accumulate(acc, ds, ks);
    }
    store_rows(dq, dq_stride, first, shape.tokens, acc);
}

// grid: (key tiles, key heads, sequences). dK and dV over the query heads of the group, then query
// tiles, both ascending.
extern "C" __global__ void __launch_bounds__(256) attention_backward_keys(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    float scale, Dropout mask, const float* lse, const float* delta, const T* dout, T* dk, T* dv,
    u64 dkv_stride) {
    extern __shared__ float memory[];
    float *ks = memory, *vs = ks + ROWS * PAD, *qs = vs + ROWS * PAD, *dos = qs + COLS * PAD;
    float *ps = dos + COLS * PAD, *ds = ps + ROWS * (COLS + 1);
    u32 kv_head = blockIdx.y, sequence = blockIdx.z, first = blockIdx.x * ROWS;
    u32 group = shape.heads / shape.kv_heads;
    u64 row = (u64)sequence * shape.tokens, width = (u64)shape.heads * HEAD_DIM;
    k += row * k_stride + kv_head * HEAD_DIM;
    v += row * v_stride + kv_head * HEAD_DIM;
    load_tile(ks, k, k_stride, first, ROWS, shape.tokens);
    load_tile(vs, v, v_stride, first, ROWS, shape.tokens);
    float sum_k[4][PARTS] = {}, sum_v[4][PARTS] = {};
    for (u32 head = kv_head * group; head < (kv_head + 1) * group; ++head) {
        const T* q_head = q + row * q_stride + head * HEAD_DIM;
        const T* dout_head = dout + row * width + head * HEAD_DIM;
        u64 stats = ((u64)sequence * shape.heads + head) * shape.tokens;
        u64 element = first_element(mask, shape, sequence, head);
        for (u32 query = first / COLS * COLS; query < shape.tokens; query += COLS) {
            __syncthreads();
            load_tile(qs, q_head, q_stride, query, COLS, shape.tokens);
            load_tile(dos, dout_head, width, query, COLS, shape.tokens);
            __syncthreads();
            float s[4][2], dp[4][2];
            dots(s, ks, qs);
            dots(dp, vs, dos);
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                u32 column = query + TX + 16 * j;
                bool exists = column < shape.tokens;
                float l = exists ? lse[stats + column] : 0.0f;
                float d = exists ? delta[stats + column] : 0.0f;
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    u32 key = first + TY * 4 + i;
                    bool visible = exists && key <= column;
                    float keep = visible ? factor(mask, shape, element, column, key) : 0.0f;
                    float2 both = score_gradient(visible, s[i][j], dp[i][j], scale, l, d, keep);
                    ps[(TY * 4 + i) * (COLS + 1) + TX + 16 * j] = both.x;
                    ds[(TY * 4 + i) * (COLS + 1) + TX + 16 * j] = both.y;
                }
            }
            __syncthreads();
            accumulate(sum_v, ps, dos);
            accumulate(sum_k, ds, qs);
        }
    }
    u64 at_head = row * dkv_stride + kv_head * HEAD_DIM;
    store_rows(dk + at_head, dkv_stride, first, shape.tokens, sum_k);
    store_rows(dv + at_head, dkv_stride, first, shape.tokens, sum_v);
}
