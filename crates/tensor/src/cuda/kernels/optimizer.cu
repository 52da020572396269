// Optimizer steps on flat buffers, with the operations of the CPU in the same order, so that equal
// gradients give equal parameters. `copy` receives the parameters rounded to `copy_type`, if given.

__device__ __forceinline__ void write(float* p, void* copy, int copy_type, u64 i, float x) {
    p[i] = x;
    if (copy) put(copy, copy_type, i, x);
}

#define EACH(i, n)                                                                               \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                            \
         i += (u64)gridDim.x * blockDim.x)

extern "C" __global__ void sgd(
    float* p, const float* g, u64 n, float lr, float weight_decay, float grad_scale, void* copy,
    int copy_type) {
    EACH(i, n) {
        float d = __fmaf_rn(p[i], weight_decay, __fmul_rn(g[i], grad_scale));
        write(p, copy, copy_type, i, __fmaf_rn(d, -lr, p[i]));
    }
}

// rule 0: momentum, 1: Nesterov, 2: LARS.
extern "C" __global__ void momentum(
    int rule, float* p, const float* g, float* buffer, u64 n, float lr, float mu,
    float weight_decay, float grad_scale, void* copy, int copy_type) {
    EACH(i, n) {
        float d = __fmaf_rn(p[i], weight_decay, __fmul_rn(g[i], grad_scale)), b, next;
        if (rule == 2) {
            b = __fmaf_rn(buffer[i], mu, __fmul_rn(d, lr));
            next = __fsub_rn(p[i], b);
        } else {
            b = __fmaf_rn(buffer[i], mu, d);
            next = __fmaf_rn(rule == 0 ? b : __fmaf_rn(b, mu, d), -lr, p[i]);
        }
        buffer[i] = b;
        write(p, copy, copy_type, i, next);
    }
}

struct Moments { float toward_gradient, beta2, one_minus_beta2, sqrt_bias2, eps; };

// Updates both moments; returns the first and the denominator.
__device__ __forceinline__ float2 update(Moments k, float g, float* m, float* v, u64 i) {
    float old = m[i];
    float first = __fmaf_rn(__fsub_rn(g, old), k.toward_gradient, old);
    float second = __fmaf_rn(__fmul_rn(g, k.one_minus_beta2), g, __fmul_rn(v[i], k.beta2));
    m[i] = first;
    v[i] = second;
    return make_float2(first, __fadd_rn(__fdiv_rn(__fsqrt_rn(second), k.sqrt_bias2), k.eps));
}

// decoupled 1: AdamW, whose decay is the factor `keep`; 0: Adam, whose decay joins the gradient.
extern "C" __global__ void adam(
    int decoupled, float* p, const float* g, float* m, float* v, u64 n, Moments k, float keep,
    float weight_decay, float minus_step_size, float grad_scale, void* copy, int copy_type) {
    EACH(i, n) {
        float scaled = __fmul_rn(g[i], grad_scale), old = p[i];
        if (!decoupled) scaled = __fmaf_rn(old, weight_decay, scaled);
        float2 moments = update(k, scaled, m, v, i);
        float kept = decoupled ? __fmul_rn(old, keep) : old;
        float step = __fdiv_rn(moments.x, moments.y);
        write(p, copy, copy_type, i, __fmaf_rn(step, minus_step_size, kept));
    }
}

// Replaces gradients by the direction of LAMB's step.
extern "C" __global__ void lamb_direction(
    const float* p, float* g, float* m, float* v, u64 n, Moments k, float weight_decay,
    float unbias1, float grad_scale) {
    EACH(i, n) {
        float2 moments = update(k, __fmul_rn(g[i], grad_scale), m, v, i);
        float adam = __fdiv_rn(__fmul_rn(moments.x, unbias1), moments.y);
        g[i] = __fmaf_rn(p[i], weight_decay, adam);
    }
}
