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

// Tensors of one launch: addresses, lengths, and the number of chunks of those before each.
struct SquaredTensors { const T* x[128]; u64 n[128]; u32 first_chunk[128]; };

// Four threads sum a chunk of 4096 elements of a tensor with the additions of the CPU: element i to
// accumulator i % 16, ascending, four accumulators a thread; then the tree of `reduce_add_f64`. A
// launch has many tensors, most of which are too small to fill the device. Elements beyond the end
// are zeros, which change no sum of squares.
extern "C" __global__ void sum_squares(
    const __grid_constant__ SquaredTensors tensors, u32 num, double* out, u32 chunks) {
    constexpr int BATCH = 8;
    u32 chunk = (blockIdx.x * blockDim.x + threadIdx.x) / 4, lane = threadIdx.x % 4;
    double sum[4] = {};
    if (chunk < chunks) {
        // The last tensor that starts at or before the chunk.
        u32 low = 0, high = num;
        while (high - low > 1) {
            u32 middle = (low + high) / 2;
            if (tensors.first_chunk[middle] <= chunk) low = middle;
            else high = middle;
        }
        const T* x = tensors.x[low];
        u64 start = (u64)(chunk - tensors.first_chunk[low]) * 4096;
        u64 n = min(tensors.n[low], start + 4096);
        for (u64 i = start + lane * 4; i < n; i += 16 * BATCH) {
            Packed<4, T> packed[BATCH];
            bool whole = i + 16 * BATCH <= n && (u64)(x + i) % Packed<4, T>::ALIGNMENT == 0;
            if (whole) {
#pragma unroll
                for (int k = 0; k < BATCH; ++k) packed[k].template fetch<true>(x, i + 16 * k, n);
            } else {
#pragma unroll
                for (int k = 0; k < BATCH; ++k) packed[k].fetch(x, i + 16 * k, n);
            }
#pragma unroll
            for (int k = 0; k < BATCH; ++k) {
                float v[4];
                packed[k].unpack(v);
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[j] = __fma_rn((double)v[j], (double)v[j], sum[j]);
            }
        }
    }
#pragma unroll
    for (int o = 2; o > 0; o /= 2)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], o);
    if (chunk < chunks && lane == 0) out[chunk] = (sum[0] + sum[2]) + (sum[1] + sum[3]);
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
