// Block-sparse attention: which tiles a loop visits, and which elements of a tile are kept.
//
// A kernel writes one loop, `while (walk.more()) { walk.tile() ... walk.advance() }`, and one
// predicate, `TileMask`. Without -DBLOCK_SPARSE the walk is a counter and the predicate a range of
// the keys. With it the host gives compressed lists of the kept tiles (fa_kernels/tile_list.py) and
// the mask itself, which only tiles that are kept in part look at.
#pragma once

#include "io.cuh"
#include "score.cuh"

// Entries of the lists: index << FLAG_BITS | flags.
constexpr int FLAG_BITS = 3;
constexpr int FLAG_MIXED = 1;  // the block mask drops elements of this tile
constexpr int FLAG_FIRST = 2;  // no K/V tile was accumulated into this Q tile before
constexpr int FLAG_LAST = 4;   // none will be after

#if BLOCK_SPARSE
static_assert(MASK_BLOCK_M >= 1 && MASK_BLOCK_N >= 1, "blocks of a mask hold an element");
// Whether a tile can touch two blocks of the mask. If not, it is kept whole or not at all, and
// everything below that looks at elements is left out: it would cost registers.
#define CUTS_TILES (MASK_BLOCK_M % BLOCK_M != 0 || MASK_BLOCK_N % BLOCK_N != 0)

// The lists and the mask in HBM. `lead` numbers the masks: one for all heads, or one for each.
struct BlockMask {
    const i64* start;
    const int* entries;
    const unsigned char* keep;  // [q_blocks, k_blocks], 1 = attend
    int k_blocks;

    __device__ __forceinline__ BlockMask(const i64* start, const int* entries,
                                         const unsigned char* keep, i64 lead, int lists,
                                         int q_blocks, int k_blocks)
        : start(start + lead * lists), entries(entries), keep(keep + lead * q_blocks * k_blocks),
          k_blocks(k_blocks) {}
};
#define BLOCK_MASK_PARAMS                                                                        \
    , const i64 *list_start, const int *list_entries, const unsigned char *mask_keep,            \
        i64 mask_batch_lead, i64 mask_head_lead, int mask_q_blocks, int mask_k_blocks
#define BLOCK_MASK_ARGS                                                                          \
    , list_start, list_entries, mask_keep, mask_batch_lead, mask_head_lead, mask_q_blocks,       \
        mask_k_blocks
#define BLOCK_MASK(batch, head, lists)                                                           \
    BlockMask(list_start, list_entries, mask_keep,                                               \
              (batch) * mask_batch_lead + (head) * mask_head_lead, lists, mask_q_blocks,         \
              mask_k_blocks)

// Walks one list. Only thread 0 reads it, so that every byte is read once per block, and it reads
// one entry ahead, so that nobody waits for the load.
struct TileWalk {
    int* entry_smem;
    i64 at, stop;
    int ahead;
    const int* entries;

    __device__ __forceinline__ TileWalk(int* entry_smem, const BlockMask& mask, int list,
                                        Traffic& traffic)
        : entry_smem(entry_smem), at(0), stop(0), ahead(-1), entries(mask.entries) {
        __syncthreads();  // no thread still looks at the entry that ended the walk before
        if (threadIdx.x == 0) {
            at = mask.start[list];
            stop = mask.start[list + 1];
            traffic.read(TENSOR_MASK, 2 * sizeof(i64));
            *entry_smem = next(traffic);
            ahead = next(traffic);
        }
        __syncthreads();  // the first entry is there
    }
    __device__ __forceinline__ int next(Traffic& traffic) {
        if (at >= stop) return -1;
        traffic.read(TENSOR_MASK, sizeof(int));
        return entries[at++];
    }
    __device__ __forceinline__ bool more() const { return *entry_smem >= 0; }
    __device__ __forceinline__ int tile() const { return *entry_smem >> FLAG_BITS; }
    __device__ __forceinline__ int flags() const { return *entry_smem & ((1 << FLAG_BITS) - 1); }
    // Call between two barriers of the loop: after the last look at this entry by any thread,
    // before the barrier that ends the iteration.
    __device__ __forceinline__ void advance(Traffic& traffic) {
        if (threadIdx.x != 0) return;
        *entry_smem = ahead;
        ahead = next(traffic);
    }
};

#else
#define CUTS_TILES 0
#define BLOCK_MASK_PARAMS
#define BLOCK_MASK_ARGS

// Walks the tiles first..end-1.
struct TileWalk {
    int at, end;

    __device__ __forceinline__ TileWalk(int first, int end) : at(first), end(end) {}
    __device__ __forceinline__ bool more() const { return at < end; }
    __device__ __forceinline__ int tile() const { return at; }
    __device__ __forceinline__ void advance(Traffic&) { ++at; }
};
#endif

#if CUTS_TILES
// Blocks of the mask that one tile can touch, wherever it starts.
constexpr int CELL_ROWS = ceil_div(BLOCK_M - 1, MASK_BLOCK_M) + 1;
constexpr int CELL_COLS = ceil_div(BLOCK_N - 1, MASK_BLOCK_N) + 1;
constexpr int MASK_SMEM_BYTES = round_up(CELL_ROWS * CELL_COLS, 16);

// cells_smem[CELL_ROWS, CELL_COLS] = the blocks of the mask under rows q0.. and keys k0.. .
__device__ __forceinline__ void load_cells(unsigned char* cells_smem, const BlockMask& mask, int q0,
                                           int rows, int k0, int keys, Traffic& traffic) {
    const int row0 = q0 / MASK_BLOCK_M, col0 = k0 / MASK_BLOCK_N;
    const int cell_rows = (q0 + rows - 1) / MASK_BLOCK_M - row0 + 1;
    const int cell_cols = (k0 + keys - 1) / MASK_BLOCK_N - col0 + 1;
    for (int i = threadIdx.x; i < cell_rows * cell_cols; i += THREADS) {
        const int row = i / cell_cols, col = i % cell_cols;
        cells_smem[row * CELL_COLS + col] = mask.keep[i64(row0 + row) * mask.k_blocks + col0 + col];
        traffic.read(TENSOR_MASK, 1);
    }
}
#else
constexpr int MASK_SMEM_BYTES = 0;
#endif

// One tile of the attention matrix: which of its elements are kept, and what becomes of those. Row
// r keeps the keys first_begin + r .. first_end + r - 1, at most `keys`: a causal row keeps one key
// more than the row above; without a mask first_end exceeds any tile.
struct TileMask {
    Extras extras;
    int q0, rows, k0, keys;
    int first_begin, first_end;
#if CUTS_TILES
    const unsigned char* cells_smem = nullptr;  // nullptr: the block mask keeps the whole tile
    int row0 = 0, col0 = 0;  // where the tile starts within the first block it touches
#endif

    __device__ __forceinline__ TileMask(const Extras& extras, const KeyRange& range, int q0,
                                        int rows, int k0, int keys)
        : extras(extras), q0(q0), rows(rows), k0(k0), keys(keys),
          first_begin(clamped(q0 + range.begin - k0)),
          first_end(clamped(q0 + range.end + 1 - k0)) {}
    // To where the answers stop changing, so that the elements compare 32-bit numbers.
    static __device__ __forceinline__ int clamped(i64 value) {
        return int(max(i64(-BLOCK_M), min(i64(BLOCK_N), value)));
    }
    __device__ __forceinline__ bool keeps_all() const {
#if CUTS_TILES
        if (cells_smem != nullptr) return false;
#endif
        if (WINDOW && first_begin + BLOCK_M - 1 > 0) return false;
        if (READS_ELEMENTS && rows < BLOCK_M) return false;
        return first_end >= BLOCK_N && keys >= BLOCK_N;
    }
    __device__ __forceinline__ bool keeps(int row, int col) const {
        if (col >= min(first_end + row, keys)) return false;
        if (WINDOW && col < first_begin + row) return false;
        if (READS_ELEMENTS && row >= rows) return false;
#if CUTS_TILES
        // Rows past the end of Q look at cells that were not loaded; nobody looks at their result.
        if (cells_smem != nullptr)
            return cells_smem[(row0 + row) / MASK_BLOCK_M * CELL_COLS +
                              (col0 + col) / MASK_BLOCK_N];
#endif
        return true;
    }
    // The score of a kept element: the bias added, -inf where the element mask drops it.
    __device__ __forceinline__ float score(int row, int col, float value, Traffic& traffic) const {
        return extras.score(q0 + row, k0 + col, value, traffic);
    }
    // p[0:4] of row `row` from column `col` on, a multiple of 4, times what dropout makes of them.
    __device__ __forceinline__ float4 dropped(int row, int col, const float4& p,
                                              Traffic& traffic) const {
#if DROPOUT == 1 && BLOCK_N % 4 == 0
        const float4 f = extras.keep_factors(q0 + row, k0 + col);
        return make_float4(p.x * f.x, p.y * f.y, p.z * f.z, p.w * f.w);
#elif DROPOUT
        float4 kept = p;
        if (keeps(row, col)) kept.x *= extras.keep_factor(q0 + row, k0 + col, traffic);
        if (keeps(row, col + 1)) kept.y *= extras.keep_factor(q0 + row, k0 + col + 1, traffic);
        if (keeps(row, col + 2)) kept.z *= extras.keep_factor(q0 + row, k0 + col + 2, traffic);
        if (keeps(row, col + 3)) kept.w *= extras.keep_factor(q0 + row, k0 + col + 3, traffic);
        return kept;
#else
        return p;
#endif
    }
};

#if CUTS_TILES
// The mask of the tile at rows q0.. and keys k0..; a tile that is cut fetches the blocks it
// touches, which the next barrier makes visible.
__device__ __forceinline__ TileMask tile_mask(unsigned char* cells_smem, const BlockMask& mask,
                                              int flags, TileMask kept, Traffic& traffic) {
    if (flags & FLAG_MIXED) {
        load_cells(cells_smem, mask, kept.q0, kept.rows, kept.k0, kept.keys, traffic);
        kept.cells_smem = cells_smem;
        kept.row0 = kept.q0 % MASK_BLOCK_M;
        kept.col0 = kept.k0 % MASK_BLOCK_N;
    }
    return kept;
}
#define TILE_MASK(q0, rows, k0, keys)                                                             \
    tile_mask(smem.cells, block_mask, walk.flags(), TileMask(extras, range, q0, rows, k0, keys),  \
              traffic)
#else
#define TILE_MASK(q0, rows, k0, keys) TileMask(extras, range, q0, rows, k0, keys)
#endif
