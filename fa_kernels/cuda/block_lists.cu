// Lists of kept tiles from a block mask, as 05 walks them (tile_queue.cuh, ListHead).
//
// A warp makes one list: of the K/V tiles of a Q tile, or of the Q tiles of a K/V tile. count_tiles
// says how long each will be; the host adds the lengths up; fill_lists writes entries and heads.
// fa_kernels/tile_list.py, `queues`, states the same in NumPy.

using i64 = long long;

constexpr int WARP = 32;
constexpr int FLAG_BITS = 3, FLAG_MIXED = 1;  // as in block_mask.cuh
enum State { SKIPPED, MIXED, WHOLE };

struct __align__(16) ListHead {
    i64 start;
    int tile, count;
};

// The mask [masks, q_blocks, k_blocks], 1 = attend; the band: row r attends r + begin .. r + end;
// and the tiles.
struct Sizes {
    i64 begin, end;
    int masks, q_blocks, k_blocks, mask_m, mask_n, seqlen_q, seqlen_k, block_m, block_n, by_keys;

    __device__ int lists() const { return tiles(by_keys); }
    __device__ int others() const { return tiles(!by_keys); }
    __device__ int tiles(bool of_keys) const {
        return of_keys ? (seqlen_k + block_n - 1) / block_n : (seqlen_q + block_m - 1) / block_m;
    }
};

__device__ State state_of(const unsigned char* keep, const Sizes& s, int q_tile, int k_tile) {
    const int row0 = q_tile * s.block_m, row1 = min(s.seqlen_q, row0 + s.block_m);
    const int col0 = k_tile * s.block_n, col1 = min(s.seqlen_k, col0 + s.block_n);
    bool some = false, whole = true;
    for (int i = row0 / s.mask_m; i * s.mask_m < row1; ++i)
        for (int j = col0 / s.mask_n; j * s.mask_n < col1; ++j) {
            const bool kept = keep[i64(i) * s.k_blocks + j];
            whole &= kept;
            // The band touches a block if its last row's end and its first row's begin leave a key.
            const i64 top = max(row0, i * s.mask_m), bottom = min(row1, (i + 1) * s.mask_m);
            const i64 left = max(col0, j * s.mask_n), right = min(col1, (j + 1) * s.mask_n);
            some |= kept && left < bottom + s.end && right > top + s.begin;
        }
    return !some ? SKIPPED : whole ? WHOLE : MIXED;
}

// The list of this warp, and its mask; false past the last.
__device__ bool my_list(const Sizes& s, const unsigned char*& keep, int& mask, int& list) {
    const i64 warp = (i64(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
    mask = int(warp / s.lists());
    list = int(warp % s.lists());
    keep += i64(mask) * s.q_blocks * s.k_blocks;
    return mask < s.masks;
}

__device__ State state_in(const unsigned char* keep, const Sizes& s, int list, int other) {
    if (other >= s.others()) return SKIPPED;
    return s.by_keys ? state_of(keep, s, other, list) : state_of(keep, s, list, other);
}

// counts[masks, lists]
extern "C" __global__ void count_tiles(const unsigned char* keep, Sizes s, int* counts) {
    int mask, list, count = 0;
    if (!my_list(s, keep, mask, list)) return;
    const int lane = threadIdx.x % WARP;
    for (int first = 0; first < s.others(); first += WARP)
        count += __popc(__ballot_sync(~0u, state_in(keep, s, list, first + lane) != SKIPPED));
    if (lane == 0) counts[i64(mask) * s.lists() + list] = count;
}

// heads[masks, lists], entries; ends[masks, lists] = sums of counts up to and with each list.
extern "C" __global__ void fill_lists(const unsigned char* keep, Sizes s, const int* counts,
                                      const i64* ends, int longest_first, ListHead* heads,
                                      int* entries) {
    int mask, list;
    if (!my_list(s, keep, mask, list)) return;
    const int lane = threadIdx.x % WARP, lists = s.lists();
    counts += i64(mask) * lists;
    heads += i64(mask) * lists;
    const int count = counts[list];
    const i64 start = ends[i64(mask) * lists + list] - count;

    int place = list;
    if (longest_first) {
        int before = 0;  // lists that are longer, or as long and of an earlier tile
        for (int i = lane; i < lists; i += WARP)
            before += counts[i] > count || (counts[i] == count && i < list);
        for (int offset = WARP / 2; offset > 0; offset /= 2)
            before += __shfl_xor_sync(~0u, before, offset);
        place = before;
    }
    if (lane == 0) heads[place] = ListHead{start, list, count};

    // By keys every list begins at another Q tile and goes round.
    int to = s.by_keys ? count - int(i64(count) * list / lists) : 0;
    for (int first = 0; first < s.others(); first += WARP) {
        const State state = state_in(keep, s, list, first + lane);
        const unsigned kept = __ballot_sync(~0u, state != SKIPPED);
        if (state != SKIPPED) {
            int at = to + __popc(kept & ((1u << lane) - 1));
            if (at >= count) at -= count;
            entries[start + at] = (first + lane) << FLAG_BITS | (state == MIXED ? FLAG_MIXED : 0);
        }
        to += __popc(kept);
    }
}
