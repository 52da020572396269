// Softmax cross-entropy, one block a row, and its parts over a sharded vocabulary.

#define IGNORE 0xffffffffu

__device__ __forceinline__ float row_max(const T* logits, u64 vocab, float* shared) {
    float largest = -INFINITY_F;
    BLOCK8(i, vocab) {
        float v[8];
        load(v, logits, i, vocab);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < vocab) largest = fmaxf(largest, v[j]);
    }
    return block_max(largest, shared);
}

__device__ __forceinline__ float sum_exp(const T* logits, u64 vocab, float max, float* shared) {
    float sum = 0.0f;
    BLOCK8(i, vocab) {
        float v[8];
        load(v, logits, i, vocab);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < vocab) sum += expf(v[j] - max);
    }
    return block_sum(sum, shared);
}

// Turns a row of logits into gradients; `own` is the target's column in this shard, if below vocab.
__device__ __forceinline__ void gradients(
    T* logits, u64 vocab, float max, float sum, u64 own, double num_targets, float factor) {
    // The target's gradient is a difference of two numbers near 1 once the model is good.
    double at_target = 0.0;
    if (own < vocab) at_target = exp((double)widen(logits[own]) - max) / sum - 1.0;
    __syncthreads();
    float scale = (float)(factor / ((double)sum * num_targets));
    BLOCK8(i, vocab) {
        float v[8];
        load(v, logits, i, vocab);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v[j] = i + j == own ? (float)(at_target / num_targets * factor)
                                : expf(v[j] - max) * scale;
        store(logits, i, vocab, v);
    }
}

__device__ __forceinline__ void clear(T* logits, u64 vocab) {
    float zero[8] = {};
    BLOCK8(i, vocab) store(logits, i, vocab, zero);
}

// Loss of each row; with num_targets above zero also the gradients, times `factor`, in place.
extern "C" __global__ void cross_entropy(
    T* logits, u64 vocab, const u32* targets, u64 num_targets, float factor, float* losses) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    logits += row * vocab;
    u32 target = targets[row];
    if (target == IGNORE) {
        if (threadIdx.x == 0) losses[row] = 0.0f;
        if (num_targets) clear(logits, vocab);
        return;
    }
    float max = row_max(logits, vocab, shared), sum = sum_exp(logits, vocab, max, shared);
    if (threadIdx.x == 0)
        losses[row] = (float)(log((double)sum) + ((double)max - widen(logits[target])));
    if (num_targets) gradients(logits, vocab, max, sum, target, (double)num_targets, factor);
}

extern "C" __global__ void raise_maxima(const T* logits, u64 vocab, float* max) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    float largest = row_max(logits + row * vocab, vocab, shared);
    if (threadIdx.x == 0) max[row] = fmaxf(max[row], largest);
}

extern "C" __global__ void exponential_sums(
    const T* logits, u64 vocab, const u32* targets, const float* max, float* sums) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    float sum = 0.0f;
    if (targets[row] != IGNORE) sum = sum_exp(logits + row * vocab, vocab, max[row], shared);
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
    gradients(logits, vocab, max[row], sums[row], own, (double)num_targets, factor);
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
