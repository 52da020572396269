// Quantisation to fp8 with block scales, as in fp8.rs. A block of threads has a tile of 128 x 128
// elements, eight rows of eight columns a thread, which it reads once for one form or for both.
// Numbers in f32 are rounded to bf16 first, so that parameters with and without a rounded copy have
// the same bits.

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

// A rows x cols matrix in fp8, with its columns contiguous and, turned, with its rows contiguous;
// either form may be absent. Sums run along the contiguous dimension, k, and the other is the outer
// one. A scale for each piece of 128 along k is at [piece][outer]; a scale for each block of
// 128 x 128 at [outer block][piece], in rows of a multiple of four. Both dimensions are multiples
// of 16.
struct Forms {
    u64 rows, cols;
    u8* to;
    float* scales;
    u8* turned_to;
    float* turned_scales;
    int max_exponent;
};

// The eight rows and columns of a thread in the tile of a row and a column of tiles.
struct Position {
    u32 line, piece;
    u64 first_row, first_col, row, col;

    __device__ __forceinline__ Position(u64 tile_row, u64 tile_col) {
        line = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
        first_row = tile_row * TILE, first_col = tile_col * TILE;
        row = first_row + line * 8, col = first_col + piece * 8;
    }
};

// The scale of a block of 128 x 128, and its inverse.
__device__ __forceinline__ float2 block_scale(const Forms& forms, u32 largest, Position at) {
    __shared__ u32 maxima[8];
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < 8; ++w) largest = max(largest, maxima[w]);
    float2 scale = scale_of(largest, forms.max_exponent);
    if (threadIdx.x == 0) {
        u64 tile_row = at.first_row / TILE, tile_col = at.first_col / TILE;
        u64 row_tiles = (forms.rows + TILE - 1) / TILE, col_tiles = (forms.cols + TILE - 1) / TILE;
        if (forms.to) forms.scales[tile_row * ((col_tiles + 3) / 4 * 4) + tile_col] = scale.x;
        if (forms.turned_to)
            forms.turned_scales[tile_col * ((row_tiles + 3) / 4 * 4) + tile_row] = scale.x;
    }
    return scale;
}

// Writes rows in fp8, multiplied by the inverse scale of each.
__device__ __forceinline__ void write_rows(
    const Forms& forms, Position at, const Packed<8, T> (&packed)[8], const float (&inverse)[8]) {
    if (at.row >= forms.rows || at.col >= forms.cols) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float x[8];
        packed[i].unpack(x);
        u32 two[4];
#pragma unroll
        for (int j = 0; j < 4; ++j)
            two[j] = quantise2(__fmul_rn(x[2 * j], inverse[i]),
                               __fmul_rn(x[2 * j + 1], inverse[i]), forms.max_exponent);
        *(uint2*)(forms.to + (at.row + i) * forms.cols + at.col) =
            make_uint2(two[0] | two[1] << 16, two[2] | two[3] << 16);
    }
}

// Writes columns in fp8, multiplied by the inverse scale of each. Eight elements of a column are a
// unit; units of a column are permuted, so that neither writing them nor reading them meets
// conflicts of banks.
__device__ __forceinline__ void write_turned(
    const Forms& forms, Position at, const Packed<8, T> (&packed)[8], const float (&inverse)[8]) {
    __shared__ __align__(16) uint2 turned[TILE * PIECES];
    u32 units[8][2] = {};
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        float x[8], y[8];
        packed[i].unpack(x);
        packed[i + 1].unpack(y);
#pragma unroll
        for (int j = 0; j < 8; ++j)
            units[j][i / 4] |= quantise2(__fmul_rn(x[j], inverse[j]), __fmul_rn(y[j], inverse[j]),
                                         forms.max_exponent)
                               << i % 4 * 8;
    }
#pragma unroll
    for (int j = 0; j < 8; ++j)
        turned[(at.piece * 8 + j) * PIECES + (at.line ^ at.piece)] =
            make_uint2(units[j][0], units[j][1]);
    __syncthreads();
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
        u32 index = pass * 256 + threadIdx.x, column = index / 8, part = index % 8;
        u32 group = column / 8, pair = part ^ group / 2;
        uint4 four = *(const uint4*)&turned[column * PIECES + 2 * pair];
        if (group % 2) four = make_uint4(four.z, four.w, four.x, four.y);
        u64 outer = at.first_col + column, k = at.first_row + part * 16;
        if (outer < forms.cols && k < forms.rows)
            *(uint4*)(forms.turned_to + outer * forms.rows + k) = four;
    }
}

// Writes a tile in the forms that are wanted. Elements outside of the matrix are zero. A block of
// threads may call it for several tiles: between two uses of shared memory all threads meet.
__device__ __forceinline__ void quantise_tile(
    const Forms& forms, Position at, const Packed<8, T> (&packed)[8], bool by_block) {
    __shared__ u32 maxima[PIECES][TILE];
    __shared__ float inverses[TILE];
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

    float inverse[8];
    if (by_block) {
        u32 largest = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) largest = max(largest, of_rows[i]);
        float2 scale = block_scale(forms, largest, at);
#pragma unroll
        for (int i = 0; i < 8; ++i) inverse[i] = scale.y;
    }
    if (forms.to) {
        if (!by_block) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                u32 largest = of_rows[i];
#pragma unroll
                for (int o = PIECES / 2; o > 0; o /= 2)
                    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, o));
                float2 scale = scale_of(largest, forms.max_exponent);
                inverse[i] = scale.y;
                if (at.piece == 0 && at.row < forms.rows)
                    forms.scales[at.first_col / TILE * forms.rows + at.row + i] = scale.x;
            }
        }
        write_rows(forms, at, packed, inverse);
    }
    if (!forms.turned_to) return;
    if (!by_block) {
#pragma unroll
        for (int j = 0; j < 8; ++j) maxima[at.line][at.piece * 8 + j] = of_cols[j];
        __syncthreads();
        if (threadIdx.x < TILE) {
            u32 largest = 0;
#pragma unroll
            for (int l = 0; l < PIECES; ++l) largest = max(largest, maxima[l][threadIdx.x]);
            float2 scale = scale_of(largest, forms.max_exponent);
            inverses[threadIdx.x] = scale.y;
            u64 outer = at.first_col + threadIdx.x;
            if (outer < forms.cols)
                forms.turned_scales[at.first_row / TILE * forms.cols + outer] = scale.x;
        }
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; ++j) inverse[j] = inverses[at.piece * 8 + j];
    }
    write_turned(forms, at, packed, inverse);
}

// Rounds to bf16 what is not stored in it.
__device__ __forceinline__ void round_to_bf16(Packed<8, T>& packed) {
    if constexpr (sizeof(T) == 4) {
        float x[8];
        packed.unpack(x);
#pragma unroll
        for (int j = 0; j < 8; ++j) x[j] = widen(narrow<bf16>(x[j]));
        packed.pack(x);
    }
}

// A stored matrix, a tile a block.
extern "C" __global__ void __launch_bounds__(256) quantise(
    const T* from, u64 stride, u64 rows, u64 cols, u8* to, float* scales, u8* turned_to,
    float* turned_scales, int max_exponent, int by_block) {
    Forms forms = {rows, cols, to, scales, turned_to, turned_scales, max_exponent};
    Position at(blockIdx.y, blockIdx.x);
    bool inside = at.row < rows && at.col < cols;
    Packed<8, T> packed[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (inside) packed[i].fetch(from + (at.row + i) * stride, at.col, cols);
        else
#pragma unroll
            for (int w = 0; w < Packed<8, T>::NUM_U32; ++w) packed[i].word[w] = 0;
        round_to_bf16(packed[i]);
    }
    quantise_tile(forms, at, packed, by_block);
}

// The gradient of SwiGLU's gates and ups, which is stored in fp8 only. A block has a tile of gates
// and that of their ups; ffn is a multiple of 128, and rows are aligned. Threads below the last row
// read it instead of branching, so that many accesses are in flight.
extern "C" __global__ void __launch_bounds__(256, 2) quantise_swiglu(
    const T* gate_up, const T* d_act, u64 rows, u64 ffn, u8* to, float* scales, u8* turned_to,
    float* turned_scales, int max_exponent) {
    Forms forms = {rows, 2 * ffn, to, scales, turned_to, turned_scales, max_exponent};
    Position gates(blockIdx.y, blockIdx.x), ups(blockIdx.y, blockIdx.x + gridDim.x);
    bool inside = gates.row < rows;
    Packed<8, T> d_gate[8], d_up[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        u64 row = inside ? gates.row + i : rows - 1;
        Packed<8, T> packed_g, packed_u, packed_d;
        packed_g.read(gate_up + 2 * row * ffn + gates.col);
        packed_u.read(gate_up + (2 * row + 1) * ffn + gates.col);
        packed_d.read(d_act + row * ffn + gates.col);
        float g[8], u[8], d[8];
        packed_g.unpack(g);
        packed_u.unpack(u);
        packed_d.unpack(d);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            SwiGlu of = swiglu_and_gradient(g[j], u[j], d[j]);
            g[j] = inside ? of.d_gate : 0.0f;
            u[j] = inside ? of.d_up : 0.0f;
        }
        d_gate[i].pack(g);
        d_up[i].pack(u);
        round_to_bf16(d_gate[i]);
        round_to_bf16(d_up[i]);
    }
    quantise_tile(forms, gates, d_gate, false);
    quantise_tile(forms, ups, d_up, false);
}
