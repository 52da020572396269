// Attention of few queries to many cached positions (flash-decoding, Dao et al. 2023). A block
// takes one query of one head and SPLIT positions; the block of a query that ends last joins the
// results of all its splits, in their order. So bits depend on positions alone, not on which block
// that is.
//
// In a block, LANES threads share a row of HEAD_DIM elements, 16 bytes each, and have KEYS rows of
// keys and as many of values in flight. No sum uses atomics: only the count of finished blocks
// does.

#define SPLIT 64
#define WARPS 8

constexpr int LEN = 16 / sizeof(T);
constexpr int VECTORS = (HEAD_DIM + LEN - 1) / LEN;
constexpr int LANES = VECTORS > 16 ? 32 : VECTORS > 8 ? 16 : VECTORS > 4 ? 8 : 4;
constexpr int PER_LANE = (VECTORS + LANES - 1) / LANES;
// Threads that share a row, and the rows of each.
constexpr int GROUPS = WARPS * 32 / LANES;
constexpr int KEYS = SPLIT / GROUPS;

// State of a softmax over some positions: the largest score, the sum of exponentials, and HEAD_DIM
// weighted sums of values.
struct Partials {
    float* states;
    u32* finished;
};
#define STATE (HEAD_DIM + 2)

// A row of one head, as the thread's group holds it.
struct Row {
    Packed<LEN, T> part[PER_LANE];

    template <bool WHOLE> __device__ __forceinline__ void fetch(const T* row) {
#pragma unroll
        for (int p = 0; p < PER_LANE; ++p) {
            int i = (threadIdx.x % LANES + p * LANES) * LEN;
            if (i < HEAD_DIM) part[p].template fetch<WHOLE>(row, i, HEAD_DIM);
            else part[p] = {};
        }
    }
};

// One query and the positions of a block.
struct Place {
    // Where rows of this query's head start: keys and values at position 0, and the output.
    const T *k, *v;
    u64 k_stride, v_stride;
    T* out;
    // Null if not wanted.
    float* lse;
    u32 split, num_splits, last;
    // Number of this query and head among all.
    u64 index;
};

__device__ __forceinline__ float from_others(const float* p) { return *(const volatile float*)p; }

// Joins the states of all splits of a query.
__device__ __forceinline__ void join_splits(Place at, const float* states, float* shared) {
    float most = -INFINITY_F;
    for (u32 s = threadIdx.x; s < at.num_splits; s += blockDim.x)
        most = fmaxf(most, from_others(states + (u64)s * STATE));
    most = block_max(most, shared);
    for (u32 c = threadIdx.x; c < HEAD_DIM; c += blockDim.x) {
        float sum = 0.0f, total = 0.0f;
#pragma unroll 4
        for (u32 s = 0; s < at.num_splits; ++s) {
            const float* state = states + (u64)s * STATE;
            float factor = exponential(from_others(state) - most);
            total = fmaf(from_others(state + 1), factor, total);
            sum = fmaf(from_others(state + 2 + c), factor, sum);
        }
        at.out[c] = narrow<T>(sum / total);
        if (c == 0 && at.lse) *at.lse = most + logf(total);
    }
}

// Scores of the group's keys, of which those at `at.last` or before count, and the softmax over
// them, joined over the block and then over all splits.
__device__ __forceinline__ void attend(
    Place at, const float* query, float scale, const Row (&keys)[KEYS], const Row (&values)[KEYS],
    Partials partials) {
    __shared__ float outs[GROUPS][HEAD_DIM], maxima[GROUPS], sums[GROUPS], factors[GROUPS];
    __shared__ float shared[32];
    __shared__ bool is_last;
    u32 lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    float score[KEYS], largest = -INFINITY_F, sum = 0.0f, acc[PER_LANE][LEN] = {};
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        float s = 0.0f;
#pragma unroll
        for (int p = 0; p < PER_LANE; ++p) {
            float k[LEN];
            keys[i].part[p].unpack(k);
#pragma unroll
            for (int j = 0; j < LEN; ++j) {
                int c = (lane + p * LANES) * LEN + j;
                s = fmaf(c < HEAD_DIM ? query[c] : 0.0f, k[j], s);
            }
        }
#pragma unroll
        for (int o = LANES / 2; o > 0; o /= 2) s += __shfl_xor_sync(0xffffffffu, s, o);
        bool exists = at.split * SPLIT + i * GROUPS + group <= at.last;
        score[i] = exists ? s * scale : -INFINITY_F;
        largest = fmaxf(largest, score[i]);
    }
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        bool exists = at.split * SPLIT + i * GROUPS + group <= at.last;
        float weight = exists ? exponential(score[i] - largest) : 0.0f;
        sum += weight;
#pragma unroll
        for (int p = 0; p < PER_LANE; ++p) {
            float v[LEN];
            values[i].part[p].unpack(v);
#pragma unroll
            for (int j = 0; j < LEN; ++j) acc[p][j] = fmaf(weight, v[j], acc[p][j]);
        }
    }
#pragma unroll
    for (int p = 0; p < PER_LANE; ++p)
#pragma unroll
        for (int j = 0; j < LEN; ++j) {
            int c = (lane + p * LANES) * LEN + j;
            if (c < HEAD_DIM) outs[group][c] = acc[p][j];
        }
    if (lane == 0) { maxima[group] = largest; sums[group] = sum; }
    __syncthreads();
    float most = maxima[0];
    for (int g = 1; g < GROUPS; ++g) most = fmaxf(most, maxima[g]);
    // Groups without a position have a maximum of minus infinity, and no share. The first position
    // of a split exists, so `most` is finite.
    if (threadIdx.x < GROUPS) factors[threadIdx.x] = exponential(maxima[threadIdx.x] - most);
    __syncthreads();
    float total = 0.0f;
    for (int g = 0; g < GROUPS; ++g) total = fmaf(sums[g], factors[g], total);
    float* states = partials.states + at.index * gridDim.x * STATE;
    float* state = states + (u64)at.split * STATE;
    for (u32 c = threadIdx.x; c < HEAD_DIM; c += blockDim.x) {
        float o = 0.0f;
#pragma unroll 8
        for (int g = 0; g < GROUPS; ++g) o = fmaf(outs[g][c], factors[g], o);
        if (at.num_splits == 1) at.out[c] = narrow<T>(o / total);
        else state[2 + c] = o;
    }
    if (at.num_splits == 1) {
        if (threadIdx.x == 0 && at.lse) *at.lse = most + logf(total);
        return;
    }
    if (threadIdx.x == 0) { state[0] = most; state[1] = total; }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        is_last = atomicAdd(partials.finished + at.index, 1u) == at.num_splits - 1;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    join_splits(at, states, shared);
    // For the next call.
    if (threadIdx.x == 0) partials.finished[at.index] = 0;
}

// Every row of the group in a split, as far as rows `end` and beyond are not cached.
template <bool WHOLE>
__device__ __forceinline__ void fetch_rows(
    Place at, u32 end, Row (&keys)[KEYS], Row (&values)[KEYS]) {
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        u64 key = at.split * SPLIT + i * GROUPS + threadIdx.x / LANES;
        keys[i] = {};
        values[i] = {};
        if (key < end) {
            keys[i].template fetch<WHOLE>(at.k + key * at.k_stride);
            values[i].template fetch<WHOLE>(at.v + key * at.v_stride);
        }
    }
}

// Queries from position `first_query` on to keys at or before them. grid: (splits of the last
// query, heads, queries of all sequences).
template <bool WHOLE>
__device__ __forceinline__ void attend_queries(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    u32 first_query, float scale, Partials partials, T* out, float* lse) {
    __shared__ float query[HEAD_DIM];
    u32 head = blockIdx.y, sequence = blockIdx.z / shape.tokens, token = blockIdx.z % shape.tokens;
    u32 kv_head = head / (shape.heads / shape.kv_heads);
    u64 first_key = (u64)sequence * (first_query + shape.tokens);
    Place at;
    at.k = k + first_key * k_stride + kv_head * HEAD_DIM;
    at.v = v + first_key * v_stride + kv_head * HEAD_DIM;
    at.k_stride = k_stride;
    at.v_stride = v_stride;
    at.index = (u64)blockIdx.z * shape.heads + head;
    at.out = out + at.index * HEAD_DIM;
    at.lse = lse + ((u64)sequence * shape.heads + head) * shape.tokens + token;
    at.split = blockIdx.x;
    at.last = first_query + token;
    at.num_splits = at.last / SPLIT + 1;
    if (at.split >= at.num_splits) return;
    Row keys[KEYS], values[KEYS];
    fetch_rows<WHOLE>(at, at.last + 1, keys, values);
    q += (u64)blockIdx.z * q_stride + head * HEAD_DIM;
    for (u32 c = threadIdx.x; c < HEAD_DIM; c += blockDim.x) query[c] = widen(q[c]);
    __syncthreads();
    attend(at, query, scale, keys, values, partials);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_queries(
    const T* q, u64 q_stride, const T* k, u64 k_stride, const T* v, u64 v_stride, Shape shape,
    u32 first_query, float scale, Partials partials, T* out, float* lse) {
    bool whole = HEAD_DIM % LEN == 0 && k_stride % LEN == 0 && v_stride % LEN == 0 &&
                 ((u64)k | (u64)v) % 16 == 0;
    if (whole)
        attend_queries<true>(q, q_stride, k, k_stride, v, v_stride, shape, first_query, scale,
                             partials, out, lse);
    else
        attend_queries<false>(q, q_stride, k, k_stride, v, v_stride, shape, first_query, scale,
                              partials, out, lse);
}

// Element c of a head, rotated as by `rotate`; `angles` are those of the position, or null.
__device__ __forceinline__ float rotated(
    const T* head, u32 c, const float* cosines, const float* sines) {
    if (!cosines) return widen(head[c]);
    constexpr u32 half = HEAD_DIM > 1 ? HEAD_DIM / 2 : 1;
    u32 i = c % half;
    float x = widen(head[i]), y = widen(head[i + half]), cosine = cosines[i], sine = sines[i];
    float z = c < half ? __fmaf_rn(x, cosine, -__fmul_rn(y, sine))
                       : __fmaf_rn(y, cosine, __fmul_rn(x, sine));
    return widen(narrow<T>(z));
}

// One new token: rotates its query and key, appends its key and value to the cache, and attends.
// `qkv` is its row before the rotation; a row of the cache is all key heads, then all value heads.
// grid: (splits, heads). The cached rows before `position` are read before the launch that comes
// ahead is done: it must not write them.
template <bool WHOLE>
__device__ __forceinline__ void attend_new(
    const T* qkv, T* cache, const float* angles, u64 num_positions, Shape shape, u32 position,
    float scale, Partials partials, T* out) {
    __shared__ float query[HEAD_DIM], key[HEAD_DIM];
    u32 head = blockIdx.y, group = shape.heads / shape.kv_heads, kv_head = head / group;
    u64 kv_len = (u64)shape.kv_heads * HEAD_DIM;
    Place at;
    at.k = cache + kv_head * HEAD_DIM;
    at.v = at.k + kv_len;
    at.k_stride = at.v_stride = 2 * kv_len;
    at.index = head;
    at.out = out + head * HEAD_DIM;
    at.lse = nullptr;
    at.split = blockIdx.x;
    at.last = position;
    at.num_splits = gridDim.x;
    Row keys[KEYS], values[KEYS];
    fetch_rows<WHOLE>(at, position, keys, values);
    wait_for_launch_ahead();
    const float* cosines = angles ? angles + (u64)position * (HEAD_DIM / 2) : nullptr;
    const float* sines = angles ? cosines + num_positions * (HEAD_DIM / 2) : nullptr;
    const T* new_key = qkv + (shape.heads + kv_head) * HEAD_DIM;
    const T* new_value = new_key + kv_len;
    bool has_new = at.split == at.num_splits - 1;
    for (u32 c = threadIdx.x; c < 2 * HEAD_DIM; c += blockDim.x) {
        if (c < HEAD_DIM) query[c] = rotated(qkv + head * HEAD_DIM, c, cosines, sines);
        else if (has_new) key[c - HEAD_DIM] = rotated(new_key, c - HEAD_DIM, cosines, sines);
    }
    __syncthreads();
    if (has_new) {
        T* cached = cache + (u64)position * 2 * kv_len + kv_head * HEAD_DIM;
        if (head % group == 0)
            for (u32 c = threadIdx.x; c < HEAD_DIM; c += blockDim.x) {
                cached[c] = narrow<T>(key[c]);
                cached[kv_len + c] = new_value[c];
            }
        u32 lane = threadIdx.x % LANES;
#pragma unroll
        for (int i = 0; i < KEYS; ++i) {
            if (at.split * SPLIT + i * GROUPS + threadIdx.x / LANES != position) continue;
            values[i].template fetch<WHOLE>(new_value);
#pragma unroll
            for (int p = 0; p < PER_LANE; ++p) {
                float k[LEN];
#pragma unroll
                for (int j = 0; j < LEN; ++j) {
                    int c = (lane + p * LANES) * LEN + j;
                    k[j] = c < HEAD_DIM ? key[c] : 0.0f;
                }
                keys[i].part[p].pack(k);
            }
        }
    }
    attend(at, query, scale, keys, values, partials);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) attention_token(
    const T* qkv, T* cache, const float* angles, u64 num_positions, Shape shape, u32 position,
    float scale, Partials partials, T* out) {
    bool whole = HEAD_DIM % LEN == 0 && ((u64)qkv | (u64)cache) % 16 == 0;
    if (whole)
        attend_new<true>(qkv, cache, angles, num_positions, shape, position, scale, partials, out);
    else
        attend_new<false>(qkv, cache, angles, num_positions, shape, position, scale, partials, out);
}
