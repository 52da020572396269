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

// Two elements of a two-byte type in 32 bits, the first in the lower half.
template <class E> __device__ __forceinline__ float2 widen2(u32 bits);
template <> __device__ __forceinline__ float2 widen2<bf16>(u32 bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}
template <> __device__ __forceinline__ float2 widen2<f16>(u32 bits) {
    f16 low, high;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(low.bits), "=h"(high.bits) : "r"(bits));
    return make_float2(widen(low), widen(high));
}

template <class E> __device__ __forceinline__ u32 narrow2(float low, float high);
template <> __device__ __forceinline__ u32 narrow2<bf16>(float low, float high) {
    u32 bits;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}
template <> __device__ __forceinline__ u32 narrow2<f16>(float low, float high) {
    u32 bits;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
}

// N elements as they lie in memory. Kernels with several operands fetch all before they unpack any,
// so that the accesses are in flight together.
template <int N, class E> struct Packed {
    static constexpr int BYTES = N * sizeof(E), NUM_U32 = BYTES / 4;
    static constexpr int ALIGNMENT = BYTES < 16 ? BYTES : 16;
    u32 word[NUM_U32];

    __device__ __forceinline__ void unpack(float (&x)[N]) const {
#pragma unroll
        for (int w = 0; w < NUM_U32; ++w) {
            if constexpr (sizeof(E) == 4) x[w] = __uint_as_float(word[w]);
            else {
                float2 two = widen2<E>(word[w]);
                x[2 * w] = two.x;
                x[2 * w + 1] = two.y;
            }
        }
    }

    __device__ __forceinline__ void pack(const float (&x)[N]) {
#pragma unroll
        for (int w = 0; w < NUM_U32; ++w) {
            if constexpr (sizeof(E) == 4) word[w] = __float_as_uint(x[w]);
            else word[w] = narrow2<E>(x[2 * w], x[2 * w + 1]);
        }
    }

    // From an aligned address.
    __device__ __forceinline__ void read(const E* p) {
        const u32* from = (const u32*)p;
#pragma unroll
        for (int w = 0; w < NUM_U32; w += ALIGNMENT / 4) {
            if constexpr (ALIGNMENT == 16) {
                uint4 four = *(const uint4*)(from + w);
                word[w] = four.x;
                word[w + 1] = four.y;
                word[w + 2] = four.z;
                word[w + 3] = four.w;
            } else if constexpr (ALIGNMENT == 8) {
                uint2 two = *(const uint2*)(from + w);
                word[w] = two.x;
                word[w + 1] = two.y;
            } else word[w] = from[w];
        }
    }

    // To an aligned address of global memory. The compiler may split a plain vector store.
    __device__ __forceinline__ void write(E* p) const {
        u32* to = (u32*)p;
#pragma unroll
        for (int w = 0; w < NUM_U32; w += ALIGNMENT / 4) {
            if constexpr (ALIGNMENT == 16)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + w),
                             "r"(word[w]), "r"(word[w + 1]), "r"(word[w + 2]), "r"(word[w + 3])
                             : "memory");
            else if constexpr (ALIGNMENT == 8)
                asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to + w), "r"(word[w]),
                             "r"(word[w + 1])
                             : "memory");
            else to[w] = word[w];
        }
    }

    // Elements from i on; those from n on are zero. WHOLE: the address is aligned, all are below n.
    template <bool WHOLE = false>
    __device__ __forceinline__ void fetch(const E* p, u64 i, u64 n) {
        if (WHOLE || (i + N <= n && (u64)(p + i) % ALIGNMENT == 0)) return read(p + i);
#pragma unroll
        for (int w = 0; w < NUM_U32; ++w) {
            if constexpr (sizeof(E) == 4) word[w] = i + w < n ? *((const u32*)p + i + w) : 0;
            else {
                const u16* from = (const u16*)p + i + 2 * w;
                u32 low = i + 2 * w < n ? from[0] : 0, high = i + 2 * w + 1 < n ? from[1] : 0;
                word[w] = high << 16 | low;
            }
        }
    }
};

template <bool WHOLE = false, int N, class E>
__device__ __forceinline__ void load(float (&x)[N], const E* p, u64 i, u64 n) {
    Packed<N, E> packed;
    packed.template fetch<WHOLE>(p, i, n);
    packed.unpack(x);
}

// Elements of a buffer whose type is known at run time, as for `at`.
template <bool WHOLE = false, int N>
__device__ __forceinline__ void load(float (&x)[N], const void* p, int type, u64 i, u64 n) {
    if (type == 0) load<WHOLE>(x, (const float*)p, i, n);
    else if (type == 1) load<WHOLE>(x, (const bf16*)p, i, n);
    else load<WHOLE>(x, (const f16*)p, i, n);
}

template <bool WHOLE = false, int N, class E>
__device__ __forceinline__ void store(E* p, u64 i, u64 n, const float (&x)[N]) {
    if (WHOLE || (i + N <= n && (u64)(p + i) % Packed<N, E>::ALIGNMENT == 0)) {
        Packed<N, E> packed;
        packed.pack(x);
        packed.write(p + i);
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j)
            if (i + j < n) p[i + j] = narrow<E>(x[j]);
    }
}

template <int N>
__device__ __forceinline__ void store(void* p, int type, u64 i, u64 n, const float (&x)[N]) {
    if (type == 0) store((float*)p, i, n, x);
    else if (type == 1) store((bf16*)p, i, n, x);
    else store((f16*)p, i, n, x);
}

// Every group of eight of n elements, over the whole grid.
#define EACH8(i, n)                                                                              \
    for (u64 i = ((u64)blockIdx.x * blockDim.x + threadIdx.x) * 8; i < (n);                      \
         i += (u64)gridDim.x * blockDim.x * 8)

// Every group of eight elements of `rows` rows, over the whole grid.
#define EACH_ROW8(row, i, rows, width)                                                           \
    for (u64 group_ = (u64)blockIdx.x * blockDim.x + threadIdx.x, in_row_ = ((width) + 7) / 8;   \
         group_ < (rows) * in_row_; group_ += (u64)gridDim.x * blockDim.x)                       \
        for (u64 row = group_ / in_row_, i = group_ % in_row_ * 8, once_ = 1; once_; once_ = 0)

// Every group of eight of n elements, over one block.
#define BLOCK8(i, n) for (u64 i = (u64)threadIdx.x * 8; i < (n); i += (u64)blockDim.x * 8)

__device__ __forceinline__ float larger_of(float a, float b) { return fmaxf(a, b); }
template <class N> __device__ __forceinline__ N sum_of(N a, N b) { return a + b; }

// Values of a warp by one fixed tree, returned to every thread.
template <class N> __device__ __forceinline__ N warp_reduce(N x, N (*join)(N, N)) {
#pragma unroll
    for (int o = 16; o > 0; o /= 2) x = join(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}

// Values of a block by one fixed tree, returned to every thread; `shared` has 32 elements.
template <class N>
__device__ __forceinline__ N block_reduce(N x, N (*join)(N, N), N neutral, N* shared) {
    x = warp_reduce(x, join);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp_reduce(threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : neutral, join);
    __syncthreads();
    return x;
}

template <class N> __device__ __forceinline__ N block_sum(N x, N* shared) {
    return block_reduce(x, sum_of<N>, (N)0, shared);
}

__device__ __forceinline__ float block_max(float x, float* shared) {
    return block_reduce(x, larger_of, -INFINITY_F, shared);
}

// Kernels that may start while the launch ahead of them ends (programmatic dependent launch, from
// Hopper on): waits until all its writes are visible, and lets the next launch start. What a kernel
// reads before must have been written earlier than by the launch ahead; that launch has passed its
// own wait, so all launches before it are done.
__device__ __forceinline__ void wait_for_launch_ahead() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Two-byte results do not need the last bits of a function: the instructions of the special
// function unit have at least 21.
#define IS_SHORT (sizeof(T) == 2)

__device__ __forceinline__ float exponential(float x) {
    if constexpr (!IS_SHORT) return expf(x);
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

// Sigmoid and its derivative; for float, the exponential of -|x| cannot overflow.
__device__ __forceinline__ float2 sigmoid_and_slope(float x) {
    if constexpr (IS_SHORT) {
        float s;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + exponential(-x)));
        return make_float2(s, fmaf(-s, s, s));
    }
    float e = expf(-fabsf(x));
    float smaller = e / (e + 1.0f), larger = 1.0f - smaller;
    return make_float2(x < 0.0f ? smaller : larger, smaller * larger);
}

// SwiGLU's gradients in gate and up, and its output; d is the gradient of the output.
struct SwiGlu { float d_gate, d_up, act; };

__device__ __forceinline__ SwiGlu swiglu_and_gradient(float gate, float up, float d) {
    float2 s = sigmoid_and_slope(gate);
    float silu = gate * s.x;
    return {d * up * fmaf(gate, s.y, s.x), d * silu, silu * up};
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
