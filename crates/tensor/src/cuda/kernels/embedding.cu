// Token and position embeddings. Gradients of tokens are added in ascending order of tokens; no
// floats are added by atomics.

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

#define NO_TOKEN 0xffffffffu
// A row of up to FEW tokens sorts them; one of more reads all ids into lists of up to LIST.
#define FEW 64
#define LIST 6144

// Links the tokens of each row. The order of links depends on the schedule; readers sort.
extern "C" __global__ void link_tokens(
    const u32* ids, u64 num_tokens, u64 first_row, u64 table_rows, u32* heads, u32* next) {
    u64 token = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= num_tokens) return;
    u64 row = (u64)ids[token] - first_row;
    if (row < table_rows) next[token] = atomicExch(&heads[row], (u32)token);
}

// Adds the gradients of listed tokens to a row in their order, N columns a thread. A batch of loads
// is in flight together.
template <int N, int BATCH, bool WHOLE>
__device__ __forceinline__ void add_listed(
    const u32* list, u32 num, const T* dout, u64 width, float* dtable) {
    for (u64 col = threadIdx.x * N; col < width; col += blockDim.x * N) {
        float sum[N];
        load<WHOLE>(sum, dtable, col, width);
        for (u32 first = 0; first < num; first += BATCH) {
            Packed<N, T> packed[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k)
                if (first + k < num)
                    packed[k].template fetch<WHOLE>(dout + list[first + k] * width, col, width);
#pragma unroll
            for (int k = 0; k < BATCH; ++k)
                if (first + k < num) {
                    float x[N];
                    packed[k].unpack(x);
#pragma unroll
                    for (int j = 0; j < N; ++j) sum[j] += x[j];
                }
        }
        store<WHOLE>(dtable, col, width, sum);
    }
}

// One block a row of the table. Appends rows of more than FEW tokens to `many`, whose first element
// is their number less one; each is added alone, so their order does not matter.
extern "C" __global__ void embedding_backward(
    const T* dout, u64 width, const u32* heads, const u32* next, u32* many, float* dtable) {
    __shared__ u32 list[FEW], links[FEW], num_links;
    u32 token = heads[blockIdx.x];
    if (token == NO_TOKEN) return;
    if (threadIdx.x == 0) {
        u32 num = 0;
        for (; token != NO_TOKEN && num < FEW; token = next[token]) links[num++] = token;
        if (token != NO_TOKEN) {
            many[atomicAdd(many, 1u) + 2] = blockIdx.x;
            num = 0;
        }
        num_links = num;
    }
    __syncthreads();
    u32 num = num_links;
    for (u32 k = threadIdx.x; k < num; k += blockDim.x) {
        u32 before = 0;
        for (u32 other = 0; other < num; ++other) before += links[other] < links[k];
        list[before] = links[k];
    }
    __syncthreads();
    if (num) add_listed<8, 2, false>(list, num, dout, width, dtable + blockIdx.x * width);
}

// Rows of many tokens, one block each.
extern "C" __global__ void __launch_bounds__(1024) embedding_backward_many(
    const u32* ids, u64 num_tokens, const T* dout, u64 first_row, u64 width, const u32* many,
    float* dtable) {
    __shared__ u32 list[LIST], counts[32];
    u32 warp = threadIdx.x / 32, thread = threadIdx.x % 32, warps = blockDim.x / 32;
    bool whole = (width % 2 | (u64)dout % (2 * sizeof(T)) | (u64)dtable % 8) == 0;
    for (u32 index = blockIdx.x; index < many[0] + 1; index += gridDim.x) {
        u64 row = many[1 + index];
        u32 num = 0;
        for (u64 first = 0; first < num_tokens; first += warps * 128) {
            // Warps read 128 ids each and append the tokens of the row in order.
            u64 start = first + warp * 128 + thread;
            u32 hits[4], own = 0, before = num;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                u64 token = start + k * 32;
                bool hit = token < num_tokens && (u64)ids[token] - first_row == row;
                hits[k] = __ballot_sync(0xffffffffu, hit);
                own += __popc(hits[k]);
            }
            if (thread == 0) counts[warp] = own;
            __syncthreads();
            for (u32 w = 0; w < warps; ++w) {
                if (w < warp) before += counts[w];
                num += counts[w];
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                u32 place = before + __popc(hits[k] & ((1u << thread) - 1));
                if (hits[k] >> thread & 1) list[place] = (u32)(start + k * 32);
                before += __popc(hits[k]);
            }
            __syncthreads();
            if (num + warps * 128 <= LIST && first + warps * 128 < num_tokens) continue;
            float* target = dtable + row * width;
            if (whole) add_listed<2, 64 / sizeof(T), true>(list, num, dout, width, target);
            else add_listed<2, 4, false>(list, num, dout, width, target);
            num = 0;
            __syncthreads();
        }
    }
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
    EACH8(i, sequence_len) {
        float sum[8] = {}, old[8];
        for (u64 first = 0; first < num_sequences; first += 4) {
            Packed<8, T> packed[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (first + k < num_sequences)
                    packed[k].fetch(dx + (first + k) * sequence_len, i, sequence_len);
#pragma unroll
            for (int k = 0; k < 4; ++k)
                if (first + k < num_sequences) {
                    float x[8];
                    packed[k].unpack(x);
#pragma unroll
                    for (int j = 0; j < 8; ++j) sum[j] += x[j];
                }
        }
        load(old, dtable, i, sequence_len);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[j] += old[j];
        store(dtable, i, sequence_len, sum);
    }
}
