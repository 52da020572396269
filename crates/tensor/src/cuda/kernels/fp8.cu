// Quantisation to fp8 with block scales, as in fp8.rs. A block of threads has a tile of 128 x 128
// elements, eight rows of eight columns a thread, which it reads once. Numbers in f32 are
// rounded to bf16 first, so that parameters with and without a rounded copy have the same bits.

#define TILE 128
#define PIECES 16

typedef unsigned char u8;

// Two elements of 8 bits, the first in the lower half; max_exponent 8: e4m3, 15: e5m2.
__device__ __forceinline__ u32 quantise2(float low, float high, int max_exponent) {
    u16 bits;
    if (max_exponent == 8)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    else asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(high), "f"(low));
    return bits;
}

// Bits of a magnitude, which are ordered as magnitudes are; those of NaN are the largest.
__device__ __forceinline__ u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// The scale for a largest magnitude, and its inverse.
__device__ __forceinline__ float2 scale_of(u32 largest, int max_exponent) {
    if (largest == 0) return make_float2(1.0f, 1.0f);
    if (largest >= 0x7f800000u) {
        float nan = __uint_as_float(0x7fc00000u);
        return make_float2(nan, nan);
    }
    int exponent = (int)(largest >> 23) - 127 + ((largest & 0x7fffffu) > 0x600000u);
    exponent = max(exponent - max_exponent, -126);
    return make_float2(__int_as_float((127 + exponent) << 23),
                       __int_as_float((127 - exponent) << 23));
}

// From a rows x cols matrix to its elements in fp8 with k contiguous: k are its columns or, if
// `turn`, its rows. A scale for each piece of 128 along k is at [piece][outer]; a scale for each
// block of 128 x 128 at [outer block][piece], in rows of a multiple of four. Both dimensions are
// multiples of 16.
extern "C" __global__ void __launch_bounds__(256) quantise(
    const T* from, u64 rows, u64 cols, u64 stride, u8* to, float* scales, int max_exponent,
    int by_block, int turn) {
    __shared__ u32 maxima[PIECES][TILE];
    __shared__ float inverses[TILE];
    __shared__ __align__(16) uint2 turned[TILE * PIECES];
    u32 line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
    u64 first_row = (u64)blockIdx.y * TILE, first_col = (u64)blockIdx.x * TILE;
    u64 row = first_row + line * 8, col = first_col + piece * 8;
    bool inside = row < rows && col < cols;

    Packed<8, T> packed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (inside) packed[i].fetch(from + (row + i) * stride, col, cols);
        else
#pragma unroll
            for (int w = 0; w < Packed<8, T>::NUM_U32; ++w) packed[i].word[w] = 0;
        if constexpr (sizeof(T) == 4) {
            float x[8];
            packed[i].unpack(x);
#pragma unroll
            for (int j = 0; j < 8; ++j) x[j] = widen(narrow<bf16>(x[j]));
            packed[i].pack(x);
        }
    }

    u32 of_rows[8] = {}, of_cols[8] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float x[8];
        packed[i].unpack(x);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            of_rows[i] = max(of_rows[i], magnitude(x[j]));
            of_cols[j] = max(of_cols[j], magnitude(x[j]));
        }
    }

    // Inverse scales of the eight rows, or columns if `turn`, of this thread.
    float inverse[8];
    if (by_block) {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = max(largest, of_rows[i]);
        largest = __reduce_max_sync(0xffffffffu, largest);
        if (threadIdx.x % 32 == 0) maxima[0][threadIdx.x / 32] = largest;
        __syncthreads();
#pragma unroll
        for (int w = 0; w < 8; ++w) largest = max(largest, maxima[0][w]);
        float2 scale = scale_of(largest, max_exponent);
#pragma unroll
        for (int i = 0; i < 8; ++i) inverse[i] = scale.y;
        u64 k = turn ? rows : cols, pieces = (k + TILE - 1) / TILE;
        u64 outer_block = turn ? blockIdx.x : blockIdx.y, at = turn ? blockIdx.y : blockIdx.x;
        if (threadIdx.x == 0) scales[outer_block * ((pieces + 3) / 4 * 4) + at] = scale.x;
    } else if (turn) {
#pragma unroll
        for (int j = 0; j < 8; ++j) maxima[line][piece * 8 + j] = of_cols[j];
        __syncthreads();
        if (threadIdx.x < TILE) {
            u32 largest = 0;
#pragma unroll
            for (int l = 0; l < PIECES; ++l) largest = max(largest, maxima[l][threadIdx.x]);
            float2 scale = scale_of(largest, max_exponent);
            inverses[threadIdx.x] = scale.y;
            u64 outer = first_col + threadIdx.x;
            if (outer < cols) scales[blockIdx.y * cols + outer] = scale.x;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; ++j) inverse[j] = inverses[piece * 8 + j];
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            u32 largest = of_rows[i];
#pragma unroll
            for (int o = PIECES / 2; o > 0; o /= 2)
                largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, o));
            float2 scale = scale_of(largest, max_exponent);
            inverse[i] = scale.y;
            if (piece == 0 && row < rows) scales[blockIdx.x * rows + row + i] = scale.x;
        }
    }

    if (!turn) {
        if (!inside) return;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float x[8];
            packed[i].unpack(x);
            u32 two[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                two[j] = quantise2(__fmul_rn(x[2 * j], inverse[i]),
                                   __fmul_rn(x[2 * j + 1], inverse[i]), max_exponent);
            *(uint2*)(to + (row + i) * cols + col) =
                make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
        }
        return;
    }

    // Eight elements of a column are a unit; units of a column are permuted, so that neither
    // writing them nor reading them meets conflicts of banks.
    u32 units[8][2] = {};
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        float x[8], y[8];
        packed[i].unpack(x);
        packed[i + 1].unpack(y);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            units[j][i / 4] |= quantise2(__fmul_rn(x[j], inverse[j]), __fmul_rn(y[j], inverse[j]),
                                         max_exponent)
                               << i % 4 * 8;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
        turned[(piece * 8 + j) * PIECES + (line ^ piece)] = make_uint2(units[j][0], units[j][1]);
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
        u32 index = pass * 256 + threadIdx.x, column = index / 8, part = index % 8;
        u32 group = column / 8, pair = part ^ group / 2;
        uint4 four = *(const uint4*)&turned[column * PIECES + 2 * pair];
        if (group % 2) four = make_uint4(four.z, four.w, four.x, four.y);
        u64 outer = first_col + column, k = first_row + part * 16;
        if (outer < cols && k < rows) *(uint4*)(to + outer * rows + k) = four;
    }
}
