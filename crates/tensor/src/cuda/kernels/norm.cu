// RMSNorm and LayerNorm, one block a row; sums in float by one fixed tree.

// Row of x, plus the residual where there is one; the sum is stored rounded and read back rounded.
__device__ __forceinline__ void load_row(
    float (&v)[8], const T* x, const T* residual, T* sum, u64 i, u64 width) {
    load(v, x, i, width);
    if (residual) {
        float r[8];
        load(r, residual, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = widen(narrow<T>(v[j] + r[j]));
        store(sum, i, width, v);
    }
}

extern "C" __global__ void rms_forward(
    const T* x, const T* residual, T* sum, const void* weight, int weight_type, float eps, T* y,
    float* rstd, u64 width) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    x += row * width;
    y += row * width;
    if (residual) { residual += row * width; sum += row * width; }
    float squares = 0.0f;
    BLOCK8(i, width) {
        float v[8];
        load_row(v, x, residual, sum, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
    }
    float r = 1.0f / sqrtf(block_sum(squares, shared) / (float)width + eps);
    if (threadIdx.x == 0) rstd[row] = r;
    const T* from = residual ? sum : x;
    BLOCK8(i, width) {
        float v[8];
        load(v, from, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) v[j] = v[j] * r * at(weight, weight_type, i + j);
        store(y, i, width, v);
    }
}

extern "C" __global__ void rms_normalize(
    const T* x, const void* weight, int weight_type, const float* rstd, T* y, u64 width) {
    u64 row = blockIdx.x;
    float r = rstd[row];
    BLOCK8(i, width) {
        float v[8];
        load(v, x + row * width, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) v[j] = v[j] * r * at(weight, weight_type, i + j);
        store(y + row * width, i, width, v);
    }
}

extern "C" __global__ void rms_backward(
    const T* x, const void* weight, int weight_type, const float* rstd, const T* dy, T* dx,
    u64 width) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    x += row * width;
    dy += row * width;
    dx += row * width;
    float r = rstd[row], dot = 0.0f;
    BLOCK8(i, width) {
        float v[8], g[8];
        load(v, x, i, width);
        load(g, dy, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) dot = fmaf(g[j] * at(weight, weight_type, i + j), v[j], dot);
    }
    float pull = r * r * (block_sum(dot, shared) / (float)width);
    BLOCK8(i, width) {
        float v[8], g[8], d[8];
        load(v, x, i, width);
        load(g, dy, i, width);
        load(d, dx, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width)
                d[j] = fmaf(fmaf(v[j], -pull, g[j] * at(weight, weight_type, i + j)), r, d[j]);
        store(dx, i, width, d);
    }
}

extern "C" __global__ void layer_forward(
    const T* x, const T* residual, T* sum, const void* weight, const void* bias, int weight_type,
    float eps, T* y, float* mean, float* rstd, u64 width) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    x += row * width;
    y += row * width;
    if (residual) { residual += row * width; sum += row * width; }
    float total = 0.0f;
    BLOCK8(i, width) {
        float v[8];
        load_row(v, x, residual, sum, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j) total += v[j];
    }
    float m = block_sum(total, shared) / (float)width;
    const T* from = residual ? sum : x;
    // The mean of squares of the centred row: mean(x^2) - mean^2 cancels when the mean is large.
    float squares = 0.0f;
    BLOCK8(i, width) {
        float v[8];
        load(v, from, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) squares = fmaf(v[j] - m, v[j] - m, squares);
    }
    float r = 1.0f / sqrtf(block_sum(squares, shared) / (float)width + eps);
    if (threadIdx.x == 0) { mean[row] = m; rstd[row] = r; }
    BLOCK8(i, width) {
        float v[8];
        load(v, from, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width)
                v[j] = fmaf((v[j] - m) * r, at(weight, weight_type, i + j),
                            at(bias, weight_type, i + j));
        store(y, i, width, v);
    }
}

extern "C" __global__ void layer_normalize(
    const T* x, const void* weight, const void* bias, int weight_type, const float* mean,
    const float* rstd, T* y, u64 width) {
    u64 row = blockIdx.x;
    float m = mean[row], r = rstd[row];
    BLOCK8(i, width) {
        float v[8];
        load(v, x + row * width, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width)
                v[j] = fmaf((v[j] - m) * r, at(weight, weight_type, i + j),
                            at(bias, weight_type, i + j));
        store(y + row * width, i, width, v);
    }
}

extern "C" __global__ void layer_backward(
    const T* x, const void* weight, int weight_type, const float* mean, const float* rstd,
    const T* dy, T* dx, u64 width) {
    __shared__ float shared[32];
    u64 row = blockIdx.x;
    x += row * width;
    dy += row * width;
    dx += row * width;
    float m = mean[row], r = rstd[row], sum_g = 0.0f, sum_gx = 0.0f;
    BLOCK8(i, width) {
        float v[8], g[8];
        load(v, x, i, width);
        load(g, dy, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) {
                float gw = g[j] * at(weight, weight_type, i + j);
                sum_g += gw;
                sum_gx = fmaf(gw, (v[j] - m) * r, sum_gx);
            }
    }
    float mean_g = block_sum(sum_g, shared) / (float)width;
    float mean_gx = block_sum(sum_gx, shared) / (float)width;
    BLOCK8(i, width) {
        float v[8], g[8], d[8];
        load(v, x, i, width);
        load(g, dy, i, width);
        load(d, dx, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) {
                float centred = g[j] * at(weight, weight_type, i + j) - mean_g;
                d[j] = fmaf(fmaf((v[j] - m) * r, -mean_gx, centred), r, d[j]);
            }
        store(dx, i, width, d);
    }
}
