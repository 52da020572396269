// Types, conversions, random numbers and reductions shared by every kernel. This text is put in
// front of each source; T, the storage type of activations, is float, bf16 or f16.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct bf16 { u16 bits; };
struct f16 { u16 bits; };
typedef STORAGE T;

#define INFINITY_F __int_as_float(0x7f800000)

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
__device__ __forceinline__ float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Rounds to nearest, ties to even.
template <class E> __device__ __forceinline__ E narrow(float x);
template <> __device__ __forceinline__ float narrow<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 narrow<bf16>(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}
template <> __device__ __forceinline__ f16 narrow<f16>(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
}

// Element i of a buffer whose type is known at run time: 0 float, 1 bf16, 2 f16.
__device__ __forceinline__ float at(const void* p, int type, u64 i) {
    if (type == 0) return ((const float*)p)[i];
    if (type == 1) return widen(((const bf16*)p)[i]);
    return widen(((const f16*)p)[i]);
}

__device__ __forceinline__ void put(void* p, int type, u64 i, float x) {
    if (type == 0) ((float*)p)[i] = x;
    else if (type == 1) ((bf16*)p)[i] = narrow<bf16>(x);
    else ((f16*)p)[i] = narrow<f16>(x);
}

// Eight elements in registers; memory is accessed 16 bytes at a time where the address allows.
template <class E> struct alignas(16) Eight { E v[8]; };

template <class E>
__device__ __forceinline__ void load8(float (&x)[8], const E* p, u64 i, u64 n) {
    if (i + 8 <= n && ((u64)(p + i) & 15) == 0) {
        Eight<E> e = *(const Eight<E>*)(p + i);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = widen(e.v[j]);
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = i + j < n ? widen(p[i + j]) : 0.0f;
    }
}

template <class E>
__device__ __forceinline__ void store8(E* p, u64 i, u64 n, const float (&x)[8]) {
    if (i + 8 <= n && ((u64)(p + i) & 15) == 0) {
        Eight<E> e;
#pragma unroll
        for (int j = 0; j < 8; ++j) e.v[j] = narrow<E>(x[j]);
        *(Eight<E>*)(p + i) = e;
    } else {
#pragma unroll
        for (int j = 0; j < 8; ++j)
            if (i + j < n) p[i + j] = narrow<E>(x[j]);
    }
}

// Every group of eight of n elements, over the whole grid.
#define EACH8(i, n)                                                                              \
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < (n);                      \
         i += (u64)gridDim.x * blockDim.x * 8)

// Every group of eight of n elements, over one block.
#define BLOCK8(i, n) for (u64 i = (u64)threadIdx.x * 8; i < (n); i += (u64)blockDim.x * 8)

// Sum over the block by one fixed tree, returned to every thread; `shared` has 32 elements.
template <class N> __device__ __forceinline__ N block_sum(N x, N* shared) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    N total = shared[0];
    for (u32 w = 1; w < blockDim.x / 32; ++w) total += shared[w];
    __syncthreads();
    return total;
}

__device__ __forceinline__ float block_max(float x, float* shared) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    float largest = shared[0];
    for (u32 w = 1; w < blockDim.x / 32; ++w) largest = fmaxf(largest, shared[w]);
    __syncthreads();
    return largest;
}

// Sigmoid and its derivative; the exponential of -|x| cannot overflow.
__device__ __forceinline__ float2 sigmoid_and_slope(float x) {
    float e = expf(-fabsf(x));
    float smaller = e / (e + 1.0f), larger = 1.0f - smaller;
    return make_float2(x < 0.0f ? smaller : larger, smaller * larger);
}

// Philox4x32-10, as in random.rs: block `counter` of the stream.
struct Key { u32 seed0, seed1; u64 stream; };

__device__ __forceinline__ uint4 philox(Key key, u64 counter) {
    u32 w0 = (u32)counter, w1 = (u32)(counter >> 32);
    u32 w2 = (u32)key.stream, w3 = (u32)(key.stream >> 32);
    u32 k0 = key.seed0, k1 = key.seed1;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 high0 = __umulhi(w0, 0xd2511f53u), low0 = w0 * 0xd2511f53u;
        u32 high2 = __umulhi(w2, 0xcd9e8d57u), low2 = w2 * 0xcd9e8d57u;
        w0 = high2 ^ w1 ^ k0;
        w1 = low2;
        w2 = high0 ^ w3 ^ k1;
        w3 = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return make_uint4(w0, w1, w2, w3);
}

__device__ __forceinline__ u32 random_word(Key key, u64 element) {
    uint4 block = philox(key, element / 4);
    switch (element % 4) {
        case 0: return block.x;
        case 1: return block.y;
        case 2: return block.z;
        default: return block.w;
    }
}

// Shape of attention.
struct Shape { u32 tokens, heads, kv_heads; };

// Random mask of probabilities, as in attention/dropout.rs; threshold 0 keeps all.
struct Dropout {
    Key key;
    u32 threshold;
    float kept;
    u64 first_sample;
    u32 heads, first_head, sequences;
};

__device__ __forceinline__ u64 first_element(Dropout d, Shape s, u32 sequence, u32 head) {
    u64 shard = sequence / d.sequences, sample = d.first_sample + sequence % d.sequences;
    u64 global = d.first_head + shard * s.heads + head;
    return (sample * d.heads + global) * s.tokens * s.tokens;
}

__device__ __forceinline__ float factor(Dropout d, Shape s, u64 first, u32 query, u32 key) {
    if (d.threshold == 0) return 1.0f;
    return random_word(d.key, first + (u64)query * s.tokens + key) >= d.threshold ? d.kept : 0.0f;
}
