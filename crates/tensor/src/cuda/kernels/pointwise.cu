// Elementwise kernels: additions, biases, activations, SwiGLU, RoPE, dropout, fills.

extern "C" __global__ void fill(T* x, u64 n, float value) {
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = value;
    EACH8(i, n) store(x, i, n, v);
}

extern "C" __global__ void add(const T* a, const T* b, T* out, u64 n) {
    EACH8(i, n) {
        float x[8], y[8];
        load(x, a, i, n);
        load(y, b, i, n);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] += y[j];
        store(out, i, n, x);
    }
}

// One block a row of a matrix whose rows are `stride` apart.
extern "C" __global__ void bias_add(
    T* x, const void* bias, int bias_type, u64 width, u64 stride) {
    x += blockIdx.x * stride;
    BLOCK8(i, width) {
        float v[8];
        load(v, x, i, width);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < width) v[j] += at(bias, bias_type, i + j);
        store(x, i, width, v);
    }
}

// 2 sqrt(2 / pi), and the cubic term of GELU's tanh form, as in gelu.rs.
#define SLOPE 1.595769f
#define CUBIC 0.044715f

// function 0: GELU, 1: ReLU.
extern "C" __global__ void activate(int function, const T* x, T* y, u64 n) {
    EACH8(i, n) {
        float v[8];
        load(v, x, i, n);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (function == 0) {
                float c = fminf(12.0f, fmaxf(-12.0f, v[j]));
                float u = c * fmaf(c * c, SLOPE * CUBIC, SLOPE);
                v[j] = v[j] * sigmoid_and_slope(u).x;
            } else {
                v[j] = v[j] < 0.0f ? 0.0f : v[j];
            }
        }
        store(y, i, n, v);
    }
}

extern "C" __global__ void activate_backward(
    int function, const T* x, const T* dy, T* dx, u64 n) {
    EACH8(i, n) {
        float v[8], d[8];
        load(v, x, i, n);
        load(d, dy, i, n);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            if (function == 0) {
                float c = fminf(12.0f, fmaxf(-12.0f, v[j])), square = c * c;
                float u = c * fmaf(square, SLOPE * CUBIC, SLOPE);
                float du = fmaf(square, 3.0f * SLOPE * CUBIC, SLOPE);
                float2 s = sigmoid_and_slope(u);
                d[j] = d[j] * fmaf(v[j] * s.y, du, s.x);
            } else {
                d[j] = v[j] > 0.0f ? d[j] : 0.0f;
            }
        }
        store(dx, i, n, d);
    }
}

// One block a row: gates, then ups.
extern "C" __global__ void swiglu_forward(const T* gate_up, u64 ffn, T* act) {
    u64 row = blockIdx.x;
    gate_up += 2 * row * ffn;
    act += row * ffn;
    BLOCK8(i, ffn) {
        float g[8], u[8];
        load(g, gate_up, i, ffn);
        load(u, gate_up + ffn, i, ffn);
#pragma unroll
        for (int j = 0; j < 8; ++j) g[j] = g[j] * sigmoid_and_slope(g[j]).x * u[j];
        store(act, i, ffn, g);
    }
}

extern "C" __global__ void swiglu_backward(
    const T* gate_up, u64 ffn, const T* dact, T* dgate_up, T* act) {
    u64 row = blockIdx.x;
    gate_up += 2 * row * ffn;
    dgate_up += 2 * row * ffn;
    dact += row * ffn;
    act += row * ffn;
    BLOCK8(i, ffn) {
        float g[8], u[8], d[8], a[8], du[8], dg[8];
        load(g, gate_up, i, ffn);
        load(u, gate_up + ffn, i, ffn);
        load(d, dact, i, ffn);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float2 s = sigmoid_and_slope(g[j]);
            float silu = g[j] * s.x;
            a[j] = silu * u[j];
            du[j] = d[j] * silu;
            dg[j] = d[j] * u[j] * fmaf(g[j], s.y, s.x);
        }
        store(act, i, ffn, a);
        store(dgate_up + ffn, i, ffn, du);
        store(dgate_up, i, ffn, dg);
    }
}

// Rotates pairs (i, i + half) of the first num_heads heads of each row, with the operations of the
// CPU. `angles` holds the cosines of all positions, then the sines.
extern "C" __global__ void rotate(
    T* rows, const float* angles, u64 num_positions, u64 half, u64 num_rows, u64 row_stride,
    u64 num_heads, u64 tokens_per_sequence, u64 first_position, float sign) {
    u64 per_row = num_heads * half, n = num_rows * per_row;
    const float* sines = angles + num_positions * half;
    for (u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x; e < n;
         e += (u64)gridDim.x * blockDim.x) {
        u64 row = e / per_row, head = e % per_row / half, i = e % half;
        u64 angle = (first_position + row % tokens_per_sequence) * half + i;
        T* left = rows + row * row_stride + head * 2 * half + i;
        float x = widen(left[0]), y = widen(left[half]);
        float c = angles[angle], s = __fmul_rn(sines[angle], sign);
        left[0] = narrow<T>(__fmaf_rn(x, c, -__fmul_rn(y, s)));
        left[half] = narrow<T>(__fmaf_rn(y, c, __fmul_rn(x, s)));
    }
}

// Element e is kept when its random word is at least the threshold.
extern "C" __global__ void dropout(
    T* x, u64 n, Key key, u64 first_element, u32 threshold, float scale) {
    u64 first_block = first_element / 4, blocks = (first_element + n + 3) / 4 - first_block;
    for (u64 b = (u64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks;
         b += (u64)gridDim.x * blockDim.x) {
        uint4 block = philox(key, first_block + b);
        u32 word[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            u64 element = (first_block + b) * 4 + j;
            if (element < first_element || element >= first_element + n) continue;
            T* at = x + (element - first_element);
            *at = narrow<T>(word[j] >= threshold ? __fmul_rn(widen(*at), scale) : 0.0f);
        }
    }
}
