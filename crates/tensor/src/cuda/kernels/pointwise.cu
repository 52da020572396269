// Elementwise kernels: additions, biases, activations, SwiGLU, RoPE, dropout, fills.

extern "C" __global__ void fill(T* x, u64 n, float value) {
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) v[j] = value;
    EACH8(i, n) store(x, i, n, v);
}

extern "C" __global__ void add(const T* a, const T* b, T* out, u64 n) {
    EACH8(i, n) {
        Packed<8, T> packed_a, packed_b;
        packed_a.fetch(a, i, n);
        packed_b.fetch(b, i, n);
        float x[8], y[8];
        packed_a.unpack(x);
        packed_b.unpack(y);
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
        Packed<8, T> packed;
        packed.fetch(x, i, width);
        float v[8], b[8];
        load(b, bias, bias_type, i, width);
        packed.unpack(v);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += b[j];
        store(x, i, width, v);
    }
}

// 2 sqrt(2 / pi), and the cubic term of GELU's tanh form, as in gelu.rs.
#define SLOPE 1.595769f
#define CUBIC 0.044715f

__device__ __forceinline__ float2 gelu_and_slope(float x) {
    float c = fminf(12.0f, fmaxf(-12.0f, x)), square = c * c;
    float u = c * fmaf(square, SLOPE * CUBIC, SLOPE);
    float du = fmaf(square, 3.0f * SLOPE * CUBIC, SLOPE);
    float2 s = sigmoid_and_slope(u);
    return make_float2(x * s.x, fmaf(x * s.y, du, s.x));
}

// function 0: GELU, 1: ReLU. FORWARD: sets y to the activation; BACKWARD: sets dx to its gradient.
template <bool FORWARD, bool BACKWARD>
__device__ __forceinline__ void activation(
    int function, const T* x, const T* dy, T* y, T* dx, u64 n) {
    EACH8(i, n) {
        Packed<8, T> packed_x, packed_dy;
        packed_x.fetch(x, i, n);
        if (BACKWARD) packed_dy.fetch(dy, i, n);
        float v[8], d[8];
        packed_x.unpack(v);
        if (BACKWARD) packed_dy.unpack(d);
        if (function == 0) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float2 both = gelu_and_slope(v[j]);
                v[j] = both.x;
                if (BACKWARD) d[j] *= both.y;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                if (BACKWARD) d[j] = v[j] > 0.0f ? d[j] : 0.0f;
                v[j] = v[j] < 0.0f ? 0.0f : v[j];
            }
        }
        if (FORWARD) store(y, i, n, v);
        if (BACKWARD) store(dx, i, n, d);
    }
}

extern "C" __global__ void activate(int function, const T* x, T* y, u64 n) {
    activation<true, false>(function, x, nullptr, y, nullptr, n);
}

extern "C" __global__ void activate_backward(
    int function, const T* x, const T* dy, T* dx, u64 n) {
    activation<false, true>(function, x, dy, nullptr, dx, n);
}

extern "C" __global__ void activate_and_backward(
    int function, const T* x, const T* dy, T* y, T* dx, u64 n) {
    activation<true, true>(function, x, dy, y, dx, n);
}

// A row of gate_up: gates, then ups.
extern "C" __global__ void swiglu_forward(const T* gate_up, u64 rows, u64 ffn, T* act) {
    EACH_ROW8(row, i, rows, ffn) {
        const T* gate = gate_up + 2 * row * ffn;
        Packed<8, T> packed_g, packed_u;
        packed_g.fetch(gate, i, ffn);
        packed_u.fetch(gate + ffn, i, ffn);
        float g[8], u[8];
        packed_g.unpack(g);
        packed_u.unpack(u);
#pragma unroll
        for (int j = 0; j < 8; ++j) g[j] = g[j] * sigmoid_and_slope(g[j]).x * u[j];
        store(act + row * ffn, i, ffn, g);
    }
}

// Writes `act`, forward's output, if it is given.
extern "C" __global__ void swiglu_backward(
    const T* gate_up, u64 rows, u64 ffn, const T* dact, T* dgate_up, T* act) {
    EACH_ROW8(row, i, rows, ffn) {
        const T* gate = gate_up + 2 * row * ffn;
        T* dgate = dgate_up + 2 * row * ffn;
        Packed<8, T> packed_g, packed_u, packed_d;
        packed_g.fetch(gate, i, ffn);
        packed_u.fetch(gate + ffn, i, ffn);
        packed_d.fetch(dact + row * ffn, i, ffn);
        float g[8], u[8], d[8], a[8];
        packed_g.unpack(g);
        packed_u.unpack(u);
        packed_d.unpack(d);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            SwiGlu of = swiglu_and_gradient(g[j], u[j], d[j]);
            a[j] = of.act, u[j] = of.d_up, g[j] = of.d_gate;
        }
        if (act) store(act + row * ffn, i, ffn, a);
        store(dgate + ffn, i, ffn, u);
        store(dgate, i, ffn, g);
    }
}

struct Rotation {
    u64 num_positions, half, num_rows, row_stride, num_heads, tokens_per_sequence, first_position;
    float sign;
};

// HEADS heads a thread, which share its angles. WHOLE: halves of heads are aligned groups of eight.
template <int HEADS, bool WHOLE>
__device__ __forceinline__ void rotate_heads(T* rows, const float* angles, Rotation r) {
    u64 half = r.half;
    EACH_ROW8(line, i, r.num_rows * ((r.num_heads + HEADS - 1) / HEADS), half) {
        u64 row = line % r.num_rows, head = line / r.num_rows * HEADS;
        u64 position = r.first_position + row % r.tokens_per_sequence;
        T* left = rows + row * r.row_stride + head * 2 * half;
        Packed<8, T> packed_x[HEADS], packed_y[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
            if (head + h < r.num_heads) {
                packed_x[h].template fetch<WHOLE>(left + h * 2 * half, i, half);
                packed_y[h].template fetch<WHOLE>(left + (h * 2 + 1) * half, i, half);
            }
        float c[8], s[8];
        load<WHOLE>(c, angles + position * half, i, half);
        load<WHOLE>(s, angles + (r.num_positions + position) * half, i, half);
#pragma unroll
        for (int h = 0; h < HEADS; ++h)
            if (head + h < r.num_heads) {
                float x[8], y[8];
                packed_x[h].unpack(x);
                packed_y[h].unpack(y);
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    float sine = __fmul_rn(s[j], r.sign), before = x[j];
                    x[j] = __fmaf_rn(before, c[j], -__fmul_rn(y[j], sine));
                    y[j] = __fmaf_rn(y[j], c[j], __fmul_rn(before, sine));
                }
                store<WHOLE>(left + h * 2 * half, i, half, x);
                store<WHOLE>(left + (h * 2 + 1) * half, i, half, y);
            }
    }
}

// Rotates pairs (i, i + half) of the first num_heads heads of each row, with the operations of the
// CPU. `angles` holds the cosines of all positions, then the sines.
extern "C" __global__ void rotate(T* rows, const float* angles, Rotation r) {
    bool whole = (r.half % 8 | r.row_stride % 8 | (u64)rows % 16 | (u64)angles % 16) == 0;
    if (whole) rotate_heads<4, true>(rows, angles, r);
    else rotate_heads<1, false>(rows, angles, r);
}

// Element e is kept when its random word is at least the threshold.
extern "C" __global__ void dropout(
    T* x, u64 n, Key key, u64 first_element, u32 threshold, float scale) {
    EACH8(i, n) {
        float v[8];
        load(v, x, i, n);
        u64 element = first_element + i;
        u32 word[8];
        if (element % 4 == 0) {
            uint4 a = philox(key, element / 4), b = philox(key, element / 4 + 1);
            word[0] = a.x; word[1] = a.y; word[2] = a.z; word[3] = a.w;
            word[4] = b.x; word[5] = b.y; word[6] = b.z; word[7] = b.w;
        } else {
#pragma unroll
            for (int j = 0; j < 8; ++j) word[j] = random_word(key, element + j);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j)
            v[j] = word[j] >= threshold ? __fmul_rn(v[j], scale) : 0.0f;
        store(x, i, n, v);
    }
}
