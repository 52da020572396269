// Conversions of flat buffers, loss scaling, sums of squares and checks for non-finite numbers.

// Counts are integers, so the order of their atomic additions does not matter.
__device__ __forceinline__ void count(u64* errors, float before, float after) {
    if (!errors) return;
    if (!(fabsf(after) < INFINITY_F)) atomicAdd(&errors[0], 1ull);
    else if (after == 0.0f && fabsf(before) > 0.0f) atomicAdd(&errors[1], 1ull);
}

// From T to the type `to_type`.
extern "C" __global__ void convert(const T* from, void* to, int to_type, u64 n, u64* errors) {
    EACH8(i, n) {
        float v[8];
        load(v, from, i, n);
        if (errors)
            for (int j = 0; j < 8; ++j)
                if (i + j < n) {
                    float after = to_type == 0   ? v[j]
                                  : to_type == 1 ? widen(narrow<bf16>(v[j]))
                                                 : widen(narrow<f16>(v[j]));
                    count(errors, v[j], after);
                }
        if (to_type == 0) store((float*)to, i, n, v);
        else if (to_type == 1) store((bf16*)to, i, n, v);
        else store((f16*)to, i, n, v);
    }
}

// Multiplies, rounds to `precision` (0 float, 1 bf16, 2 f16) and stores as T.
extern "C" __global__ void scale(T* x, u64 n, float factor, int precision, u64* errors) {
    EACH8(i, n) {
        float v[8];
        load(v, x, i, n);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            float before = v[j], after = __fmul_rn(before, factor);
            if (precision == 1) after = widen(narrow<bf16>(after));
            if (precision == 2) after = widen(narrow<f16>(after));
            after = widen(narrow<T>(after));
            v[j] = after;
            if (i + j < n) count(errors, before, after);
        }
        store(x, i, n, v);
    }
}

// Sixteen threads sum a chunk of 4096 elements with the additions of the CPU: element i to
// accumulator i % 16, ascending, an accumulator a thread; then the tree of `reduce_add_f64`. Most
// tensors have few chunks, so many loads of a thread are in flight. Elements beyond the end are
// zeros, which change no sum of squares.
extern "C" __global__ void sum_squares(const T* x, u64 n, double* out, u64 chunks) {
    constexpr int BATCH = 32;
    u64 chunk = ((u64)blockIdx.x * blockDim.x + threadIdx.x) / 16;
    double sum = 0.0;
    if (chunk < chunks)
        for (u64 i = chunk * 4096 + threadIdx.x % 16; i < min(n, (chunk + 1) * 4096);
             i += 16 * BATCH) {
            float v[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) v[k] = i + 16 * k < n ? widen(x[i + 16 * k]) : 0.0f;
#pragma unroll
            for (int k = 0; k < BATCH; ++k) sum = __fma_rn((double)v[k], (double)v[k], sum);
        }
#pragma unroll
    for (int o = 8; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (chunk < chunks && threadIdx.x % 16 == 0) out[chunk] = sum;
}

// The lowest index of an infinity or NaN; a minimum does not depend on the order of updates.
extern "C" __global__ void first_non_finite(const T* x, u64 n, u64* first) {
    EACH8(i, n) {
        float v[8];
        load(v, x, i, n);
        for (int j = 0; j < 8; ++j)
            if (i + j < n && !(fabsf(v[j]) < INFINITY_F)) {
                atomicMin(first, i + j);
                break;
            }
    }
}
