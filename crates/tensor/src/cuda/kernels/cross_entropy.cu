// Softmax cross-entropy, one block a row, and its parts over a sharded vocabulary.

#define IGNORE 0xffffffffu
#define LOWEST (-3.4028235e38f)

// Eight logits; those beyond the row are minus infinity. WHOLE: rows are aligned groups of eight.
template <bool WHOLE>
__device__ __forceinline__ void load_logits(float (&v)[8], const T* row, u64 i, u64 vocab) {
    load<WHOLE>(v, row, i, vocab);
    if (!WHOLE && i + 8 > vocab)
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j >= vocab) v[j] = -INFINITY_F;
}

__device__ __forceinline__ float max_of(const float (&v)[8]) {
    float a = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    return fmaxf(a, fmaxf(fmaxf(v[4], v[5]), fmaxf(v[6], v[7])));
}

__device__ __forceinline__ float sum_exp_of(const float (&v)[8], float max) {
    float e[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) e[j] = exponential(v[j] - max);
    return ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
}

// The largest logit of a row, and the sum of exponentials of differences to it, in one pass: a
// thread's sum is relative to the largest logit that it has read (Milakov and Gimelshein, 2018).
template <bool WHOLE>
__device__ __forceinline__ float2 max_and_sum(const T* row, u64 vocab, float* shared) {
    float own_max = LOWEST, own_sum = 0.0f;
    BLOCK8(i, vocab) {
        float v[8];
        load_logits<WHOLE>(v, row, i, vocab);
        float larger = max_of(v);
        if (larger > own_max) {
            own_sum *= exponential(own_max - larger);
            own_max = larger;
        }
        own_sum += sum_exp_of(v, own_max);
    }
    float max = block_max(own_max, shared);
    return make_float2(max, block_sum(own_sum * exponential(own_max - max), shared));
}

// Whether this thread stores the group of column `own`, if that is below vocab.
__device__ __forceinline__ bool owns(u64 own, u64 vocab) {
    return own < vocab && own / 8 % blockDim.x == threadIdx.x;
}

// Writes the gradients of a row of logits; `own` is the target's column in this shard, if below
// vocab. `row` holds the logits: the target of the gradients, or a copy.
template <bool WHOLE>
__device__ __forceinline__ void gradients(
    const T* row, T* target, u64 vocab, float max, float sum, u64 own, double num_targets,
    float factor) {
    float logit = owns(own, vocab) ? widen(row[own]) : 0.0f;
    float scale = (float)(factor / ((double)sum * num_targets));
    BLOCK8(i, vocab) {
        float v[8];
        load_logits<WHOLE>(v, row, i, vocab);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = exponential(v[j] - max) * scale;
        store<WHOLE>(target, i, vocab, v);
    }
    if (owns(own, vocab)) {
        // A difference of two numbers near 1 once the model is good.
        double probability = exp((double)logit - max) / sum;
        target[own] = narrow<T>((float)((probability - 1.0) / num_targets * factor));
    }
}

__device__ __forceinline__ void clear(T* logits, u64 vocab) {
    float zero[8] = {};
    BLOCK8(i, vocab) store(logits, i, vocab, zero);
}

template <bool WHOLE>
__device__ __forceinline__ void loss_of_row(
    const T* row, T* logits, u64 vocab, u32 target, u64 num_targets, float factor, float* loss) {
    __shared__ float shared[32];
    float2 both = max_and_sum<WHOLE>(row, vocab, shared);
    if (owns(target, vocab))
        *loss = (float)(log((double)both.y) + ((double)both.x - widen(row[target])));
    if (num_targets)
        gradients<WHOLE>(
            row, logits, vocab, both.x, both.y, target, (double)num_targets, factor);
}

__device__ __forceinline__ void ignore_row(T* logits, u64 vocab, u64 num_targets, float* loss) {
    if (threadIdx.x == 0) *loss = 0.0f;
    if (num_targets) clear(logits, vocab);
}

// Loss of each row; with num_targets above zero also the gradients, times `factor`, in place.
extern "C" __global__ void cross_entropy(
    T* logits, u64 vocab, const u32* targets, u64 num_targets, float factor, float* losses) {
    logits += blockIdx.x * vocab;
    losses += blockIdx.x;
    u32 target = targets[blockIdx.x];
    if (target == IGNORE) return ignore_row(logits, vocab, num_targets, losses);
    loss_of_row<false>(logits, logits, vocab, target, num_targets, factor, losses);
}

// As above for rows of whole, aligned groups of eight, read once into dynamic shared memory: a
// thread reads only the groups that it has copied.
extern "C" __global__ void __launch_bounds__(512, 2) cross_entropy_in_shared(
    T* logits, u64 vocab, const u32* targets, u64 num_targets, float factor, float* losses) {
    extern __shared__ uint4 copy[];
    logits += blockIdx.x * vocab;
    losses += blockIdx.x;
    u32 target = targets[blockIdx.x];
    if (target == IGNORE) return ignore_row(logits, vocab, num_targets, losses);
    u32 to = (u32)__cvta_generic_to_shared(copy);
    BLOCK8(i, vocab)
#pragma unroll
        for (u32 byte = 0; byte < 8 * sizeof(T); byte += 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                         "r"(to + (u32)(i * sizeof(T)) + byte), "l"((char*)(logits + i) + byte)
                         : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    loss_of_row<true>((const T*)copy, logits, vocab, target, num_targets, factor, losses);
}

extern "C" __global__ void raise_maxima(const T* logits, u64 vocab, float* max) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    float largest = -INFINITY_F;
    BLOCK8(i, vocab) {
        float v[8];
        load_logits<false>(v, logits + row * vocab, i, vocab);
        largest = fmaxf(largest, max_of(v));
    }
    largest = block_max(largest, shared);
    if (threadIdx.x == 0) max[row] = fmaxf(max[row], largest);
}

extern "C" __global__ void exponential_sums(
    const T* logits, u64 vocab, const u32* targets, const float* max, float* sums) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    float sum = 0.0f, largest = max[row];
    if (targets[row] != IGNORE)
        BLOCK8(i, vocab) {
            float v[8];
            load_logits<false>(v, logits + row * vocab, i, vocab);
            sum += sum_exp_of(v, largest);
        }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) sums[row] = sum;
}

extern "C" __global__ void target_logits(
    const T* logits, u64 vocab, u64 first_column, const u32* targets, u64 rows, float* out) {
    u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    u64 own = (u64)targets[row] - first_column;
    if (own < vocab) out[row] = widen(logits[row * vocab + own]);
}

// Gradients of a shard that starts at `first_column`, from its logits and the sums of all shards.
extern "C" __global__ void shard_gradients(
    T* logits, u64 vocab, u64 first_column, const u32* targets, u64 num_targets, float factor,
    const float* max, const float* sums) {
    u64 row = blockIdx.x;
    logits += row * vocab;
    if (targets[row] == IGNORE) return clear(logits, vocab);
    u64 own = (u64)targets[row] - first_column;
    gradients<false>(
        logits, logits, vocab, max[row], sums[row], own, (double)num_targets, factor);
}

extern "C" __global__ void shard_losses(
    const u32* targets, const float* max, const float* sums, const float* target_logits, u64 rows,
    float* losses) {
    u64 row = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double loss = log((double)sums[row]) + ((double)max[row] - target_logits[row]);
    losses[row] = targets[row] == IGNORE ? 0.0f : (float)loss;
}

// Sum of losses by one block and one fixed tree, added to the total or in its place.
extern "C" __global__ void sum_losses(const float* losses, u64 rows, double* total, int add) {
    __shared__ double shared[32];
    double sum = 0.0;
    for (u64 row = threadIdx.x; row < rows; row += blockDim.x) sum += losses[row];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) *total = add ? *total + sum : sum;
}

// The column of the largest logit, the first of equals, by one block; counts a row that has a
// logit that is not a number.
extern "C" __global__ void greedy_token(const T* logits, u64 vocab, u32* token, u32* num_invalid) {
    __shared__ u64 best_of_warp[32];
    // Logits in the order of unsigned numbers, above those of later columns.
    u64 best = 0;
    bool is_invalid = false;
    BLOCK8(i, vocab) {
        float v[8];
        load_logits<false>(v, logits, i, vocab);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            is_invalid |= v[j] != v[j];
            // Both zeros are equal.
            u32 bits = __float_as_uint(v[j] + 0.0f);
            u32 ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
            u64 key = (u64)ordered << 32 | (u32)~(u32)(i + j);
            if (i + j < vocab && key > best) best = key;
        }
    }
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        u64 other = __shfl_xor_sync(0xffffffffu, best, lane);
        best = other > best ? other : best;
    }
    if (threadIdx.x % 32 == 0) best_of_warp[threadIdx.x / 32] = best;
    is_invalid = __syncthreads_or(is_invalid);
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < blockDim.x / 32; ++warp)
            best = best_of_warp[warp] > best ? best_of_warp[warp] : best;
        *token = ~(u32)best;
        *num_invalid += is_invalid;
    }
}
