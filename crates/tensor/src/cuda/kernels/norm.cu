// RMSNorm and LayerNorm; sums in float by one fixed tree. A row is read once and kept, V groups of
// eight elements a thread, by a warp or, where BLOCK, by a whole block. WHOLE: rows are aligned
// groups of eight, and registers hold them; local memory holds other rows.

// A norm without a bias is an RMSNorm; weight and bias have one type.
struct Norm {
    const void* weight;
    const void* bias;
    int weight_type;
    u64 rows, width;
};

template <bool BLOCK> __device__ __forceinline__ float row_sum(float x, float* shared) {
    if constexpr (BLOCK) return block_sum(x, shared);
    else return warp_reduce(x, sum_of<float>);
}

template <bool BLOCK> __device__ __forceinline__ u64 row_of_thread() {
    return BLOCK ? blockIdx.x : (u64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
}

// Every group k of a thread, from column i on.
#define EACH_GROUP(k, i)                                                                         \
    _Pragma("unroll (WHOLE ? V : 1)") for (int k = 0; k < V; ++k)                                \
        if (u64 i = BLOCK ? ((u64)k * blockDim.x + threadIdx.x) * 8                              \
                          : (u64)(k * 32 + threadIdx.x % 32) * 8;                                \
            i < norm.width)

// Normalises and stores eight elements.
template <bool LAYER, bool WHOLE>
__device__ __forceinline__ void store_normalized(
    Norm norm, float (&v)[8], float m, float r, T* y, u64 i) {
    float w[8], b[8];
    load<WHOLE>(w, norm.weight, norm.weight_type, i, norm.width);
    if (LAYER) load<WHOLE>(b, norm.bias, norm.weight_type, i, norm.width);
#pragma unroll
    for (int j = 0; j < 8; ++j)
        v[j] = LAYER ? fmaf((v[j] - m) * r, w[j], b[j]) : v[j] * r * w[j];
    store<WHOLE>(y, i, norm.width, v);
}

template <bool LAYER, int V, bool BLOCK, bool WHOLE>
__device__ __forceinline__ void forward(
    Norm norm, const T* x, const T* residual, T* sum, float eps, T* y, float* mean, float* rstd) {
    __shared__ float shared[32];
    u64 row = row_of_thread<BLOCK>(), start = row * norm.width;
    if (row >= norm.rows) return;
    Packed<8, T> packed[V], other[V];
    EACH_GROUP(k, i) {
        packed[k].template fetch<WHOLE>(x + start, i, norm.width);
        if (residual) other[k].template fetch<WHOLE>(residual + start, i, norm.width);
    }
    float v[V][8], total = 0.0f, m = 0.0f, squares = 0.0f;
    EACH_GROUP(k, i) {
        packed[k].unpack(v[k]);
        if (residual) {
            // The sum is stored rounded, and the norm is that of the rounded sum.
            float addend[8];
            other[k].unpack(addend);
#pragma unroll
            for (int j = 0; j < 8; ++j) v[k][j] = widen(narrow<T>(v[k][j] + addend[j]));
            store<WHOLE>(sum + start, i, norm.width, v[k]);
        }
        if (LAYER)
#pragma unroll
            for (int j = 0; j < 8; ++j) total += v[k][j];
    }
    if (LAYER) m = row_sum<BLOCK>(total, shared) / (float)norm.width;
    // The mean of squares of the centred row: mean(x^2) - mean^2 cancels when the mean is large.
    EACH_GROUP(k, i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float centred = LAYER && (WHOLE || i + j < norm.width) ? v[k][j] - m : v[k][j];
            squares = fmaf(centred, centred, squares);
        }
    }
    float r = 1.0f / sqrtf(row_sum<BLOCK>(squares, shared) / (float)norm.width + eps);
    if (threadIdx.x % (BLOCK ? blockDim.x : 32) == 0) {
        if (LAYER) mean[row] = m;
        rstd[row] = r;
    }
    EACH_GROUP(k, i) store_normalized<LAYER, WHOLE>(norm, v[k], m, r, y + start, i);
}

// Partial sums of the gradients of weight and bias, one of each column for `rows` rows.
struct Partials {
    float* weight;
    float* bias;
    u64 rows;
};

// Adds the values of a block's warps, or takes those of its threads, and stores them.
template <int V, bool BLOCK, bool WHOLE>
__device__ __forceinline__ void store_partials(Norm norm, const float (&x)[V][8], float* out) {
    __shared__ float sums[BLOCK ? 1 : 4][BLOCK ? 1 : 1024];
    out += blockIdx.x * norm.width;
    if constexpr (BLOCK) {
        EACH_GROUP(k, i) store<WHOLE>(out, i, norm.width, x[k]);
    } else {
        EACH_GROUP(k, i) {
#pragma unroll
            for (int j = 0; j < 8; ++j) sums[threadIdx.x / 32][i + j] = x[k][j];
        }
        __syncthreads();
        for (u64 i = threadIdx.x; i < norm.width; i += blockDim.x)
            out[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
        __syncthreads();
    }
}

// Adds the gradient of the input; WEIGHTS: a block walks through the rows of a partial sum.
template <bool LAYER, int V, bool BLOCK, bool WHOLE, bool WEIGHTS>
__device__ __forceinline__ void backward(
    Norm norm, const T* x, const float* mean, const float* rstd, const T* dy, T* dx,
    Partials partials) {
    __shared__ float shared[32];
    float dweight[V][8] = {}, dbias[V][8] = {};
    u64 at_once = BLOCK ? 1 : blockDim.x / 32, rows = WEIGHTS ? partials.rows : at_once;
    u64 end = min(norm.rows, (blockIdx.x + 1) * rows);
    for (u64 row = blockIdx.x * rows + (BLOCK ? 0 : threadIdx.x / 32); row < end; row += at_once) {
        u64 start = row * norm.width;
        Packed<8, T> px[V], pdy[V], pdx[V];
        EACH_GROUP(k, i) {
            px[k].template fetch<WHOLE>(x + start, i, norm.width);
            pdy[k].template fetch<WHOLE>(dy + start, i, norm.width);
            pdx[k].template fetch<WHOLE>(dx + start, i, norm.width);
        }
        float v[V][8], g[V][8], m = LAYER ? mean[row] : 0.0f, r = rstd[row];
        float sum_g = 0.0f, sum_gx = 0.0f;
        EACH_GROUP(k, i) {
            float w[8];
            px[k].unpack(v[k]);
            pdy[k].unpack(g[k]);
            load<WHOLE>(w, norm.weight, norm.weight_type, i, norm.width);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                if (LAYER) v[k][j] = (v[k][j] - m) * r;
                if (WEIGHTS)
                    dweight[k][j] = fmaf(g[k][j], LAYER ? v[k][j] : v[k][j] * r, dweight[k][j]);
                if (WEIGHTS && LAYER) dbias[k][j] += g[k][j];
                g[k][j] *= w[j];
                if (LAYER) sum_g += g[k][j];
                sum_gx = fmaf(g[k][j], v[k][j], sum_gx);
            }
        }
        float mean_g = LAYER ? row_sum<BLOCK>(sum_g, shared) / (float)norm.width : 0.0f;
        float mean_gx = row_sum<BLOCK>(sum_gx, shared) / (float)norm.width;
        float pull = LAYER ? mean_gx : r * r * mean_gx;
        EACH_GROUP(k, i) {
            float d[8];
            pdx[k].unpack(d);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float centred = LAYER ? g[k][j] - mean_g : g[k][j];
                d[j] = fmaf(fmaf(v[k][j], -pull, centred), r, d[j]);
            }
            store<WHOLE>(dx + start, i, norm.width, d);
        }
        if (!WEIGHTS) return;
    }
    if (WEIGHTS) store_partials<V, BLOCK, WHOLE>(norm, dweight, partials.weight);
    if (WEIGHTS && LAYER) store_partials<V, BLOCK, WHOLE>(norm, dbias, partials.bias);
}

#define FORWARD_KERNEL(shape, V, BLOCK, WHOLE, THREADS)                                          \
    extern "C" __global__ void __launch_bounds__(THREADS) norm_forward_##shape(                  \
        Norm norm, const T* x, const T* residual, T* sum, float eps, T* y, float* mean,          \
        float* rstd) {                                                                           \
        if (norm.bias)                                                                           \
            forward<true, V, BLOCK, WHOLE>(norm, x, residual, sum, eps, y, mean, rstd);          \
        else forward<false, V, BLOCK, WHOLE>(norm, x, residual, sum, eps, y, mean, rstd);        \
    }

#define BACKWARD_KERNEL(name, V, BLOCK, WHOLE, WEIGHTS, THREADS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS) name(                                  \
        Norm norm, const T* x, const float* mean, const float* rstd, const T* dy, T* dx,         \
        Partials p) {                                                                            \
        if (norm.bias)                                                                           \
            backward<true, V, BLOCK, WHOLE, WEIGHTS>(norm, x, mean, rstd, dy, dx, p);            \
        else backward<false, V, BLOCK, WHOLE, WEIGHTS>(norm, x, mean, rstd, dy, dx, p);          \
    }

// Up to 1024 columns; up to 8192; up to 65,536 and of any alignment.
FORWARD_KERNEL(warp, 4, false, true, 128)
FORWARD_KERNEL(block, 2, true, true, 512)
FORWARD_KERNEL(any, 16, true, false, 512)
BACKWARD_KERNEL(norm_backward_warp, 4, false, true, false, 128)
BACKWARD_KERNEL(norm_backward_block, 2, true, true, false, 512)
BACKWARD_KERNEL(norm_backward_any, 16, true, false, false, 512)
// Sums of columns take registers: up to 768 columns; up to 1024; up to 8192.
BACKWARD_KERNEL(norm_and_weight_backward_narrow, 3, false, true, true, 128)
BACKWARD_KERNEL(norm_and_weight_backward_warp, 4, false, true, true, 128)
BACKWARD_KERNEL(norm_and_weight_backward_block, 2, true, true, true, 512)

extern "C" __global__ void normalize(
    Norm norm, const T* x, const float* mean, const float* rstd, T* y) {
    EACH_ROW8(row, i, norm.rows, norm.width) {
        u64 start = row * norm.width;
        float v[8], r = rstd[row];
        load(v, x + start, i, norm.width);
        if (norm.bias) store_normalized<true, false>(norm, v, mean[row], r, y + start, i);
        else store_normalized<false, false>(norm, v, 0.0f, r, y + start, i);
    }
}
