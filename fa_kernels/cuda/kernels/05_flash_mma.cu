// FlashAttention forward on tensor cores (mma.sync): what 04 does, at FlashAttention-2's speed.
//
// Source: FlashAttention-2 (arXiv 2307.08691), Algorithm 1 and section 3.3: each warp owns rows of
//   Q and goes over all keys, so that S, P and O stay in its registers. Differs in that a warp
//   rescales O only when a row's maximum has grown by more than RESCALE_ABOVE (as FlashAttention-4
//   does), and in the order of the blocks.
// Tensors: q, out (batch, nheads, seqlen_q, HEAD_DIM); k, v (batch, nheads_kv, seqlen_k, HEAD_DIM);
//   any batch/head/row strides, last axis contiguous. lse (batch, nheads, seqlen_q) fp32, natural
//   log, contiguous. io dtype fp16 or bf16. With -DBLOCK_SPARSE a block mask and the list of K/V
//   tiles of each Q tile (block_mask.cuh). Window, mask, bias, dropout and packed sequences:
//   score.cuh.
// Launch: grid = batch * nheads * ceil(seqlen_q / BLOCK_M); THREADS per block, a warp (with PAIRS
//   two) for every WARP_ROWS rows; dynamic shared memory. Blocks go through `heads_in_section`
//   heads at a time, whose K and V fit in L2 together, longest tiles first.
// SRAM, bytes (SMEM_BYTES): 2 HEAD_DIM_PAD (BLOCK_M + 2 STAGES BLOCK_N); S, P and O are in
//   registers. PAIRS add 2 BLOCK_M BLOCK_N for P and 8 BLOCK_M; a block mask that cuts tiles adds
//   two bytes per block that a tile touches.
// HBM, elements per (batch, head), no mask: as 04: 2 seqlen_q d + 2 seqlen_k d ceil(seqlen_q /
//   BLOCK_M), and seqlen_q fp32 for lse.
// Numerics: products of 16-bit operands in fp32; m, l, O in fp32; P is rounded to the io dtype
//   before P V, as every FlashAttention on tensor cores does. O and l belong to a maximum that may
//   be up to 2^RESCALE_ABOVE too small: P is then at most 256, which fp16 holds, and the result is
//   the same; fp16 P overflows where scores pass 2^26, whose fp32 is coarser than that maximum. A
//   row with no kept key gives out 0 and lse -inf. NaN in one query row stays in that
//   row; NaN or inf in a V row reaches every row of Q that shares a tile with it (0 * NaN).
// Architectures: sm_80 and later.
// Changed from 04: the two products run on tensor cores. What feeds them are switches that can be
//   turned off one by one: STAGES = 2 (the next K and V arrive while these are used), SWIZZLE
//   (ldmatrix without bank conflicts), Q_IN_REGS (where there are registers left), FOLD_SCALE
//   (exp2(s scale - m scale) is one FFMA and one MUFU), LAZY_RESCALE, PAIRS (two warps share 32
//   rows, where O of 32 is too much for one: K and V are read half as often as by warps of 16),
//   OVERLAP (S of the next tile between the exponentials of this one, where two S fit).
// Limits and verdict: bound by mma.sync and by what a warp does between its products. On Ampere and
//   Ada mma.sync is all there is; Hopper's warpgroup instructions (wgmma) go further.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "mma.cuh"
#include "mma_flash.cuh"
#include "tile_queue.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
flash_mma(const io_t* q, Strides q_strides, const io_t* k, Strides k_strides, const io_t* v,
          Strides v_strides, io_t* out, Strides out_strides, float* lse, int nheads, int kv_group,
          int seqlen_q, int seqlen_k, Band band, float scale,
          int heads_in_section BLOCK_MASK_PARAMS EXTRAS_PARAMS PACKED_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(128) unsigned char smem_bytes[];
    MmaSmem smem(smem_bytes);
    const Place at;

    // The last Q tiles first: under a causal mask they have the most work. Lists come sorted.
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);  // of the longest sequence, if packed
    const Turn turn(blockIdx.x, q_tiles, gridDim.x / q_tiles, heads_in_section);
    const int bh = turn.head;
    const i64 batch = bh / nheads, head = bh % nheads, kv_head = bh % nheads / kv_group;
    const Sequence seq = SEQUENCE(bh, batch, head);
    Traffic traffic;
#if BLOCK_SPARSE
    __shared__ QueueSmem queue_smem;
    const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * q_tiles);
    TileQueue walk(queue_smem, block_mask, turn.turn, traffic);
    const int q0 = walk.own() * BLOCK_M;
#else
    const int q0 = (q_tiles - 1 - turn.turn) * BLOCK_M;
#endif
    if (PACKED && q0 >= seq.seqlen_q) return;  // past the end of a shorter sequence
    const int q_rows = min(BLOCK_M, seq.seqlen_q - q0);
    const KeyRange range(band, seq.seqlen_q, seq.seqlen_k);
    const Extras extras(batch, head EXTRAS_ARGS);
    k += seq.batch * k_strides.batch + kv_head * k_strides.head + seq.k_row0 * k_strides.row;
    v += seq.batch * v_strides.batch + kv_head * v_strides.head + seq.k_row0 * v_strides.row;
    q += seq.batch * q_strides.batch + head * q_strides.head + (seq.q_row0 + q0) * q_strides.row;
#if !BLOCK_SPARSE
    out += seq.batch * out_strides.batch + head * out_strides.head +
           (seq.q_row0 + q0) * out_strides.row;
#endif

    copy_tile<BLOCK_M>(smem.q, q, q_strides.row, q_rows, TENSOR_Q, traffic);
    // The tile's last row attends the last keys, its first row the first.
    const int key_end = range.end_of(q0 + q_rows - 1);
#if !BLOCK_SPARSE
    TileQueue walk(range.begin_of(q0) / BLOCK_N, ceil_div(key_end, BLOCK_N));
#endif
    // Stage i % 2 of K and of V holds tile i. With OVERLAP K is a tile ahead of V.
    auto copy_k = [&](int after, int stage) {
        const int k0 = walk.tile(after) * BLOCK_N;
        copy_tile<BLOCK_N>(smem.k + stage * KV_BYTES, k + k0 * k_strides.row, k_strides.row,
                           min(BLOCK_N, key_end - k0), TENSOR_K, traffic);
    };
    auto copy_v = [&](int after, int stage) {
        const int k0 = walk.tile(after) * BLOCK_N;
        copy_tile<BLOCK_N>(smem.v + stage * KV_BYTES, v + k0 * v_strides.row, v_strides.row,
                           min(BLOCK_N, key_end - k0), TENSOR_V, traffic);
    };
    auto nothing = [](int) {};
    if (walk.has(0)) copy_k(0, 0);
    if (!OVERLAP && walk.has(0)) copy_v(0, 0);
    copy_async_commit();
    Rows<D_FRAGS> o;
    clear(o);
    Softmax softmax;
    QRows q_frags(smem.q, at);
    Rows<N_FRAGS> s_even, s_odd;  // of tiles 0, 2, 4 ... and 1, 3, 5 ...
    if (Q_IN_REGS || OVERLAP) {
        copy_async_wait();
        __syncthreads();  // Q and the first K are in shared memory, whoever copied them
        q_frags.keep();
    }
    if (OVERLAP && walk.has(0)) {
        if (walk.has(1)) copy_k(1, 1);
        copy_v(0, 0);
        copy_async_commit();
        scores(s_even, q_frags, smem.k, at, nothing);
    }

    // One tile: s is its S, which OVERLAP has computed before; s_next becomes that of the next one.
    auto visit = [&](Rows<N_FRAGS>& s, Rows<N_FRAGS>& s_next, int stage) {
        const int k0 = walk.tile(0) * BLOCK_N, keys = min(BLOCK_N, key_end - k0);
#if CUTS_TILES
        smem.turn_cells(walk.visit());
        const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);  // fetches cells
#endif
        copy_async_wait();
        // What was copied for this visit is there, and everyone is done with what the visit before
        // used: it is overwritten next.
        __syncthreads();
        walk.fetch(traffic);
        if (STAGES == 2) {
            if (walk.has(1 + OVERLAP)) copy_k(1 + OVERLAP, OVERLAP ? stage : stage ^ 1);
            if (walk.has(1)) copy_v(1, stage ^ 1);
            copy_async_commit();
        }
        if (!OVERLAP) scores(s, q_frags, smem.k + stage * KV_BYTES, at, nothing);
#if !CUTS_TILES
        const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
#endif
        mask_scores(s, mask, scale, at, traffic);
        if (OVERLAP && walk.has(1)) {
            constexpr int STEPS = HEAD_DIM_PAD / 16;
            scores(s_next, q_frags, smem.k + (stage ^ 1) * KV_BYTES, at, [&](int k) {
                if (k == 0) softmax.maxima(s, scale, at, smem.rows);
                if (k > 0) softmax.exponentials(s, scale, k - 1, STEPS - 1);
            });
        } else {
            softmax.maxima(s, scale, at, smem.rows);
            softmax.exponentials(s, scale, 0, 1);
        }
        softmax.rescale(o);
#if DROPOUT
        drop(s, mask, at, traffic);
#endif
        add_product(o, PRows(s, smem.p, at), smem.v + stage * KV_BYTES, at);
        if (STAGES == 1) {
            __syncthreads();  // everyone is done with K and V before they are overwritten
            if (walk.has(1)) {
                copy_k(1, 0);
                copy_v(1, 0);
            }
            copy_async_commit();
        }
        walk.advance();
    };
#if OVERLAP
    while (walk.has(0)) {
        visit(s_even, s_odd, 0);
        if (!walk.has(0)) break;
        visit(s_odd, s_even, 1);
    }
#else
    for (int stage = 0; walk.has(0); stage = STAGES - 1 - stage) visit(s_even, s_odd, stage);
#endif

    copy_async_wait();
    __syncthreads();  // without a single tile, the copy of Q could still overwrite O
#if BLOCK_SPARSE
    // Computed again: kept, the place of O would take registers from the loop.
    const Turn last(not_kept(blockIdx.x), q_tiles, gridDim.x / q_tiles, heads_in_section);
    const int q_end0 = walk.own() * BLOCK_M, rows = min(BLOCK_M, seqlen_q - q_end0);
    float* const lse_rows = lse + i64(last.head) * seqlen_q + q_end0;
    out += last.head / nheads * out_strides.batch + last.head % nheads * out_strides.head +
           q_end0 * out_strides.row;
#else
    const int rows = q_rows;
    float* const lse_rows = lse + seq.stats_row0 + q0;
#endif
    softmax.finish(o, scale, extras, lse_rows, rows, at, smem.rows, traffic);
    store_rows(o, smem.q, out, out_strides.row, rows, at, traffic);
    TRAFFIC_FLUSH(traffic);
}
