// Token and position embeddings. Gradients of tokens are added in ascending order of tokens,
// without atomics: a block owns some rows and columns of the table and reads all ids.

extern "C" __global__ void embedding_forward(
    const u32* ids, u64 num_tokens, const void* table, int table_type, u64 first_row,
    u64 table_rows, u64 width, T* out) {
    EACH_ROW8(token, i, num_tokens, width) {
        float v[8];
        u64 row = (u64)ids[token] - first_row;
        if (row < table_rows) load(v, table, table_type, row * width + i, (row + 1) * width);
        else
#pragma unroll
            for (int j = 0; j < 8; ++j) v[j] = -0.0f;
        store(out + token * width, i, width, v);
    }
}

#define TABLE_ROWS 16
#define TABLE_COLS 128
#define IDS 1024

// TABLE_COLS threads: each owns a column of TABLE_ROWS rows.
extern "C" __global__ void embedding_backward(
    const u32* ids, u64 num_tokens, const T* dout, u64 first_row, u64 table_rows, u64 width,
    float* dtable) {
    __shared__ float sums[TABLE_ROWS][TABLE_COLS];
    __shared__ u32 found[IDS], count[TABLE_COLS / 32], total;
    __shared__ unsigned char rows[IDS];
    u64 base = (u64)blockIdx.x * TABLE_ROWS, col = (u64)blockIdx.y * TABLE_COLS + threadIdx.x;
    u32 num_rows = (u32)min((u64)TABLE_ROWS, table_rows - base), touched = 0;
    u32 thread = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (col < width)
        for (u32 r = 0; r < num_rows; ++r) sums[r][threadIdx.x] = dtable[(base + r) * width + col];
    for (u64 first = 0; first < num_tokens; first += IDS) {
        if (threadIdx.x == 0) total = 0;
        __syncthreads();
        for (u32 part = 0; part < IDS; part += TABLE_COLS) {
            u64 token = first + part + threadIdx.x;
            u64 row = token < num_tokens ? (u64)ids[token] - first_row - base : ~0ull;
            u32 hits = __ballot_sync(0xffffffffu, row < num_rows);
            if (thread == 0) count[warp] = __popc(hits);
            __syncthreads();
            u32 before = total + __popc(hits & ((1u << thread) - 1));
            u32 all = total;
            for (u32 w = 0; w < TABLE_COLS / 32; ++w) {
                if (w < warp) before += count[w];
                all += count[w];
            }
            if (row < num_rows) {
                found[before] = (u32)(token - first);
                rows[before] = (unsigned char)row;
            }
            __syncthreads();
            if (threadIdx.x == 0) total = all;
            __syncthreads();
        }
        u32 num = total;
        if (col < width)
            for (u32 f = 0; f < num; ++f) {
                sums[rows[f]][threadIdx.x] += widen(dout[(first + found[f]) * width + col]);
                touched |= 1u << rows[f];
            }
        __syncthreads();
    }
    if (col < width)
        for (u32 r = 0; r < num_rows; ++r)
            if (touched >> r & 1) dtable[(base + r) * width + col] = sums[r][threadIdx.x];
}

extern "C" __global__ void add_positions(
    const void* table, int table_type, u64 tokens_per_sequence, u64 first_position,
    u64 num_tokens, u64 width, T* x) {
    EACH_ROW8(token, i, num_tokens, width) {
        u64 position = first_position + token % tokens_per_sequence;
        float v[8], p[8];
        load(v, x + token * width, i, width);
        load(p, table, table_type, position * width + i, (position + 1) * width);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] += p[j];
        store(x + token * width, i, width, v);
    }
}

// Sums sequences in ascending order, then adds the sum once.
extern "C" __global__ void positions_backward(
    const T* dx, u64 num_sequences, u64 sequence_len, float* dtable) {
    for (u64 e = (u64)blockIdx.x * blockDim.x + threadIdx.x; e < sequence_len;
         e += (u64)gridDim.x * blockDim.x) {
        float sum = 0.0f;
        for (u64 s = 0; s < num_sequences; ++s) sum += widen(dx[s * sequence_len + e]);
        dtable[e] += sum;
    }
}
