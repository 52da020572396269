// Optimizer steps on flat buffers, with the operations of the CPU in the same order, so that equal
// gradients give equal parameters. `copy` receives the parameters rounded to `copy_type`, if given.

// Every group of four of n elements: 16 bytes of each buffer.
#define EACH4(i, n)                                                                              \
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 4; i < (n);                      \
         i += (u64)gridDim.x * blockDim.x * 4)
#define FOUR(j) _Pragma("unroll") for (int j = 0; j < 4; ++j)

// Four elements of up to four buffers, loaded together; an absent buffer gives zeros.
__device__ __forceinline__ void load_all(
    float (&a)[4], const float* p, float (&b)[4], const float* q, float (&c)[4], const float* r,
    float (&d)[4], const float* s, u64 i, u64 n) {
    Packed<4, float> packed[4] = {};
    packed[0].fetch(p, i, n);
    packed[1].fetch(q, i, n);
    if (r) packed[2].fetch(r, i, n);
    if (s) packed[3].fetch(s, i, n);
    packed[0].unpack(a);
    packed[1].unpack(b);
    packed[2].unpack(c);
    packed[3].unpack(d);
}

__device__ __forceinline__ void store_parameters(
    float* p, void* copy, int copy_type, u64 i, u64 n, const float (&x)[4]) {
    store(p, i, n, x);
    if (copy) store(copy, copy_type, i, n, x);
}

extern "C" __global__ void sgd(
    float* p, const float* g, u64 n, float lr, float weight_decay, float grad_scale, void* copy,
    int copy_type) {
    EACH4(i, n) {
        float x[4], grad[4], none[4];
        load_all(x, p, grad, g, none, nullptr, none, nullptr, i, n);
        FOUR(j) {
            float d = __fmaf_rn(x[j], weight_decay, __fmul_rn(grad[j], grad_scale));
            x[j] = __fmaf_rn(d, -lr, x[j]);
        }
        store_parameters(p, copy, copy_type, i, n, x);
    }
}

// rule 0: momentum, 1: Nesterov, 2: LARS.
extern "C" __global__ void momentum(
    int rule, float* p, const float* g, float* buffer, u64 n, float lr, float mu,
    float weight_decay, float grad_scale, void* copy, int copy_type) {
    EACH4(i, n) {
        float x[4], grad[4], b[4], none[4];
        load_all(x, p, grad, g, b, buffer, none, nullptr, i, n);
        FOUR(j) {
            float d = __fmaf_rn(x[j], weight_decay, __fmul_rn(grad[j], grad_scale));
            if (rule == 2) {
                b[j] = __fmaf_rn(b[j], mu, __fmul_rn(d, lr));
                x[j] = __fsub_rn(x[j], b[j]);
            } else {
                b[j] = __fmaf_rn(b[j], mu, d);
                x[j] = __fmaf_rn(rule == 0 ? b[j] : __fmaf_rn(b[j], mu, d), -lr, x[j]);
            }
        }
        store(buffer, i, n, b);
        store_parameters(p, copy, copy_type, i, n, x);
    }
}

struct Moments { float toward_gradient, beta2, one_minus_beta2, sqrt_bias2, eps; };

// Updates both moments; returns the denominator.
__device__ __forceinline__ float update(Moments k, float g, float& m, float& v) {
    m = __fmaf_rn(__fsub_rn(g, m), k.toward_gradient, m);
    v = __fmaf_rn(__fmul_rn(g, k.one_minus_beta2), g, __fmul_rn(v, k.beta2));
    return __fadd_rn(__fdiv_rn(__fsqrt_rn(v), k.sqrt_bias2), k.eps);
}

// decoupled 1: AdamW, whose decay is the factor `keep`; 0: Adam, whose decay joins the gradient.
extern "C" __global__ void adam(
    int decoupled, float* p, const float* g, float* m, float* v, u64 n, Moments k, float keep,
    float weight_decay, float minus_step_size, float grad_scale, void* copy, int copy_type) {
    EACH4(i, n) {
        float x[4], grad[4], first[4], second[4];
        load_all(x, p, grad, g, first, m, second, v, i, n);
        FOUR(j) {
            float scaled = __fmul_rn(grad[j], grad_scale);
            if (!decoupled) scaled = __fmaf_rn(x[j], weight_decay, scaled);
            float denominator = update(k, scaled, first[j], second[j]);
            float kept = decoupled ? __fmul_rn(x[j], keep) : x[j];
            x[j] = __fmaf_rn(__fdiv_rn(first[j], denominator), minus_step_size, kept);
        }
        store(m, i, n, first);
        store(v, i, n, second);
        store_parameters(p, copy, copy_type, i, n, x);
    }
}

struct Lion { float into_direction, into_momentum, keep, lr, grad_scale; };

extern "C" __global__ void lion(
    float* p, const float* g, float* m, u64 n, Lion k, void* copy, int copy_type) {
    EACH4(i, n) {
        float x[4], grad[4], first[4], none[4];
        load_all(x, p, grad, g, first, m, none, nullptr, i, n);
        FOUR(j) {
            float away = __fsub_rn(__fmul_rn(grad[j], k.grad_scale), first[j]);
            float direction = __fmaf_rn(away, k.into_direction, first[j]);
            float moved = direction > 0.0f ? -k.lr : direction < 0.0f ? k.lr : 0.0f;
            x[j] = __fadd_rn(__fmul_rn(x[j], k.keep), moved);
            first[j] = __fmaf_rn(away, k.into_momentum, first[j]);
        }
        store(m, i, n, first);
        store_parameters(p, copy, copy_type, i, n, x);
    }
}

struct ScheduleFree {
    float beta2, one_minus_beta2, sqrt_bias2, eps, weight_decay, minus_lr, averaging,
        toward_average, grad_scale;
};

// y: points of the gradients; x: averages; z: fast sequence; v: second moments.
extern "C" __global__ void schedule_free(
    float* y, const float* g, float* x, float* z, float* v, u64 n, ScheduleFree k, void* copy,
    int copy_type) {
    EACH4(i, n) {
        float at[4], grad[4], average[4], fast[4], second[4];
        Packed<4, float> packed = {};
        packed.fetch(v, i, n);
        load_all(at, y, grad, g, average, x, fast, z, i, n);
        packed.unpack(second);
        FOUR(j) {
            float d = __fmul_rn(grad[j], k.grad_scale);
            second[j] = __fmaf_rn(
                __fmul_rn(d, k.one_minus_beta2), d, __fmul_rn(second[j], k.beta2));
            float denominator =
                __fadd_rn(__fdiv_rn(__fsqrt_rn(second[j]), k.sqrt_bias2), k.eps);
            float u = __fmaf_rn(at[j], k.weight_decay, __fdiv_rn(d, denominator));
            fast[j] = __fmaf_rn(u, k.minus_lr, fast[j]);
            average[j] = __fmaf_rn(__fsub_rn(fast[j], average[j]), k.averaging, average[j]);
            at[j] = __fmaf_rn(__fsub_rn(average[j], fast[j]), k.toward_average, fast[j]);
        }
        store(v, i, n, second);
        store(z, i, n, fast);
        store(x, i, n, average);
        store_parameters(y, copy, copy_type, i, n, at);
    }
}

// Replaces gradients by the direction of LAMB's step.
extern "C" __global__ void lamb_direction(
    const float* p, float* g, float* m, float* v, u64 n, Moments k, float weight_decay,
    float unbias1, float grad_scale) {
    EACH4(i, n) {
        float x[4], grad[4], first[4], second[4];
        load_all(x, p, grad, g, first, m, second, v, i, n);
        FOUR(j) {
            float scaled = __fmul_rn(grad[j], grad_scale);
            float denominator = update(k, scaled, first[j], second[j]);
            float adam = __fdiv_rn(__fmul_rn(first[j], unbias1), denominator);
            grad[j] = __fmaf_rn(x[j], weight_decay, adam);
        }
        store(m, i, n, first);
        store(v, i, n, second);
        store(g, i, n, grad);
    }
}

// Replaces gradients by the direction that Muon orthogonalises.
extern "C" __global__ void muon_direction(
    float* g, float* m, u64 n, float mu, float toward_gradient, float grad_scale) {
    EACH4(i, n) {
        float grad[4], first[4], none[4];
        load_all(grad, g, first, m, none, nullptr, none, nullptr, i, n);
        FOUR(j) {
            float scaled = __fmul_rn(grad[j], grad_scale);
            first[j] = __fmaf_rn(__fsub_rn(scaled, first[j]), toward_gradient, first[j]);
            grad[j] = __fmaf_rn(__fsub_rn(first[j], scaled), mu, scaled);
        }
        store(m, i, n, first);
        store(g, i, n, grad);
    }
}
