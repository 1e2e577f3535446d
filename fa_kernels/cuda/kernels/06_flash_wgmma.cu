// FlashAttention forward on Hopper's own instructions: TMA copies, warpgroups multiply (wgmma).
//
// Source: FlashAttention-3 (arXiv 2407.08608), section 3.1 (a producer warpgroup; warpgroups that
//   take turns) and 3.2 (S of a tile is multiplied while P V of the tile before runs). Differs in
//   that, with LAZY_RESCALE, O is rescaled only when a maximum has grown by more than RESCALE_ABOVE
//   (as FlashAttention-4 does), in how blocks share the work, and in having no fp8.
// Tensors: q (batch, nheads, seqlen_q, HEAD_DIM), k, v (batch, nheads_kv, seqlen_k, HEAD_DIM) as
//   tensor maps with boxes of [BLOCK_M, 64] and [BLOCK_N, 64]: rows at multiples of 16 bytes; out
//   like q with any strides, lse (batch, nheads, seqlen_q) fp32, natural log, contiguous. io dtype
//   fp16 or bf16. With -DBLOCK_SPARSE a block mask and the list of K/V tiles of each Q tile
//   (block_mask.cuh, tile_queue.cuh). Window, mask, bias, dropout: score.cuh.
// Launch: THREADS + 128 threads, a warpgroup for every 64 rows and one that copies; dynamic shared
//   memory; any grid up to the number of work items, batch * nheads * ceil(seqlen_q / BLOCK_M): a
//   block goes on to the next item until there is none. `counters`, two zeros that no other launch
//   uses meanwhile, hand them out and are zeros again at the end. Items go through
//   `heads_in_section` heads at a time, whose K and V fit in L2 together, longest first.
// SRAM, bytes (SMEM_BYTES): 2 HEAD_DIM_PAD (BLOCK_M + 2 STAGES BLOCK_N) + 256 of barriers; S, P and
//   O are in registers. A block mask that cuts tiles adds two bytes per block that a tile touches.
// HBM, elements per (batch, head), no mask: as 05: 2 seqlen_q d + 2 seqlen_k d ceil(seqlen_q /
//   BLOCK_M), and seqlen_q fp32 for lse. A box is copied whole: under a causal mask the last tile
//   of a row brings all of its keys.
// Numerics: as 05. NaN or inf in a V row reaches every row of Q that shares a tile with it.
// Architectures: sm_90a alone; later ones have no wgmma.
// Changed from 05: operands of both products come from shared memory in the layout in which TMA
//   wrote them, 64 rows at a time, and nobody who multiplies computes an address or waits for a
//   copy to be issued. Registers move from the warpgroup that copies to those that multiply.
// Limits and verdict: a warp has as many exponentials as half its share of the products costs at
//   d = 128, and as many as all of it at d = 64: how far both overlap decides. No packed sequences
//   and no rows that TMA cannot read: 05 has them. This is what "auto" takes on Hopper.

#include "io.cuh"
#include "score.cuh"
#include "block_mask.cuh"
#include "hopper.cuh"
#include "mma.cuh"
#include "mma_softmax.cuh"
#include "tile_queue.cuh"
#include "wgmma_flash.cuh"

extern "C" __global__ void __launch_bounds__(THREADS + WARPGROUP, 1)
flash_wgmma(const __grid_constant__ TensorMap q_map, const __grid_constant__ TensorMap k_map,
            const __grid_constant__ TensorMap v_map, io_t* out, Strides out_strides, float* lse,
            unsigned* counters, int nheads, int kv_group, int seqlen_q, int seqlen_k, Band band,
            float scale, int heads_in_section,
            int items BLOCK_MASK_PARAMS EXTRAS_PARAMS TRAFFIC_PARAM) {
    extern __shared__ __align__(1024) unsigned char smem_bytes[];
    WgmmaSmem smem(smem_bytes);
    const int q_tiles = ceil_div(seqlen_q, BLOCK_M);
    const KeyRange range(band, seqlen_q, seqlen_k);
    Traffic traffic;
    if (threadIdx.x == THREADS) {
        smem.init();
        tensor_map_prefetch(q_map);
        tensor_map_prefetch(k_map);
        tensor_map_prefetch(v_map);
    }
    __syncthreads();  // the barriers are there

    if (threadIdx.x >= THREADS) {
        if (GROUPS > 1) give_registers<PRODUCER_REGISTERS>();
        // ---- the producer: one thread copies ----
        if (threadIdx.x == THREADS) {
            Ring<STAGES> k_at, v_at;
            unsigned q_parity = 0;
            const WorkItems work{counters, items};
            int number = work.first();
            while (number < items) {
                const Turn turn(number, q_tiles, items / q_tiles, heads_in_section);
                const int batch = turn.head / nheads, head = turn.head % nheads;
                const int kv_head = head / kv_group;
#if BLOCK_SPARSE
                ItemWalk walk(BLOCK_MASK(i64(batch), i64(head), HEAD_WORDS * q_tiles), turn.turn,
                              traffic);
#else
                const ItemWalk walk(range, q_tiles, turn.turn, seqlen_q);
#endif
                const int q0 = walk.q0, count = walk.count;
                int k_row = 0;  // of the tile that K has got last: V gets it next
                const auto copy_k = [&](int visit) {
                    const Told told{walk.entry(visit, traffic)};
                    k_row = told.tile() * BLOCK_N;
                    mbarrier_wait(smem.k_empty(k_at.stage), k_at.parity ^ 1);
                    smem.told[k_at.stage] = told.entry;
                    mbarrier_arrive_expecting(smem.k_full(k_at.stage), KV_BYTES);
                    tma_load_tile<BLOCK_N, SLABS>(smem.k + k_at.stage * KV_BYTES, k_map, k_row,
                                                  kv_head, batch, smem.k_full(k_at.stage));
                    traffic.read(TENSOR_K, min(BLOCK_N, seqlen_k - k_row) * 2 * HEAD_DIM);
                    k_at.advance();
                };
                const auto copy_v = [&](int row) {
                    mbarrier_wait(smem.v_empty(v_at.stage), v_at.parity ^ 1);
                    mbarrier_arrive_expecting(smem.v_full(v_at.stage), KV_BYTES);
                    tma_load_tile<BLOCK_N, SLABS>(smem.v + v_at.stage * KV_BYTES, v_map, row,
                                                  kv_head, batch, smem.v_full(v_at.stage));
                    traffic.read(TENSOR_V, min(BLOCK_N, seqlen_k - row) * 2 * HEAD_DIM);
                    v_at.advance();
                };
                if (count > 0) copy_k(0);  // while the item before is still on its way out
                mbarrier_wait(smem.q_empty(), q_parity ^ 1);
                smem.told[STAGES] = number;
                smem.told[STAGES + 1] = q0;
                smem.told[STAGES + 2] = count;
                mbarrier_arrive_expecting(smem.q_full(), Q_BYTES);
                tma_load_tile<BLOCK_M, SLABS>(smem.q, q_map, q0, head, batch, smem.q_full());
                traffic.read(TENSOR_Q, min(BLOCK_M, seqlen_q - q0) * 2 * HEAD_DIM);
                q_parity ^= 1;
                // K is a tile ahead of V.
                // Asked for two visits before the end: the answer is there when copies go on.
                const int ask_at = max(1, count - 2);
                int next = 0;
                if (count <= 1) next = work.next();
#pragma unroll 1
                for (int visit = 1; visit < count; ++visit) {
                    if (visit == ask_at) next = work.next();
                    const int row = k_row;
                    copy_k(visit);
                    copy_v(row);
                }
                if (count > 0) copy_v(k_row);
                number = next;
            }
            work.end();
            mbarrier_wait(smem.q_empty(), q_parity ^ 1);
            smem.told[STAGES] = items;  // there is no more
            mbarrier_arrive(smem.q_full());
        }
        __syncwarp();  // its counters are added up by all lanes
    } else {
        if (GROUPS > 1) take_registers<CONSUMER_REGISTERS>();
        // ---- those who multiply ----
        const Place at;
        // The same in all lanes, which the compiler should know.
        const Turns turns{__shfl_sync(ALL_LANES, int(threadIdx.x / WARPGROUP), 0)};
        const unsigned own_rows = smem.q + turns.group * slab_bytes(64);
        Ring<STAGES> k_at, v_at;
        unsigned q_parity = 0;
        turns.begin();
        while (true) {
            mbarrier_wait(smem.q_full(), q_parity);
            q_parity ^= 1;
            const int number = smem.told[STAGES];
            if (number >= items) break;
            const Turn turn(number, q_tiles, items / q_tiles, heads_in_section);
            const i64 batch = turn.head / nheads, head = turn.head % nheads;
            const Extras extras(batch, head EXTRAS_ARGS);
            const int q0 = smem.told[STAGES + 1], count = smem.told[STAGES + 2];
            const int q_rows = min(BLOCK_M, seqlen_q - q0);
            const int key_end = range.end_of(q0 + q_rows - 1);
#if BLOCK_SPARSE
            const BlockMask block_mask = BLOCK_MASK(batch, head, HEAD_WORDS * q_tiles);
#endif
            // Visits that this group's own rows need: the last tiles may have keys for the rows
            // below them alone.
            int mine = count;
            if (LEAVES_EARLY) {
                const int own0 = q0 + 64 * turns.group, own_stop = min(own0 + 64, seqlen_q);
                const int own_end = own0 < own_stop ? range.end_of(own_stop - 1) : 0;
                const int tiles = ceil_div(own_end, BLOCK_N) - range.begin_of(q0) / BLOCK_N;
                mine = max(0, min(count, tiles));
            }
            Rows<D_FRAGS> o;
            clear(o);
            Rows<N_FRAGS> s;
            unsigned p[P_STEPS][4];
            Softmax softmax;
            // Which of a tile's elements are kept; fetches the cells of one that is cut.
            const auto mask_of = [&](const Told& walk) {
                const int k0 = walk.tile() * BLOCK_N, keys = min(BLOCK_N, key_end - k0);
                smem.turn_cells();
                const TileMask mask = TILE_MASK(q0, q_rows, k0, keys);
                walk.meet();
                return mask;
            };
            const auto exponentials = [&](const TileMask& mask) {
                mask_scores(s, mask, scale, at, traffic);
                softmax.maxima(s, scale, at, nullptr);
                softmax.exponentials(s, scale, 0, 1);
            };
            const auto to_p = [&](const TileMask& mask) {
#if DROPOUT
                drop(s, mask, at, traffic);
#endif
                round_p(p, s);
            };
            if (mine == 0) warp_arrive(smem.q_empty(), at.lane);
            if (mine > 0) {
                mbarrier_wait(smem.k_full(k_at.stage), k_at.parity);
                const Told told{smem.told[k_at.stage]};
                wgmma_fence();
                start_scores(s, own_rows, smem.k + k_at.stage * KV_BYTES);
                const TileMask mask = mask_of(told);
                wgmma_wait<0>();
                pin(s[0]);
                warp_arrive(smem.k_empty(k_at.stage), at.lane);
                if (mine == 1) warp_arrive(smem.q_empty(), at.lane);
                k_at.advance();
                exponentials(mask);
                to_p(mask);
            }
            for (int visit = 1; visit < mine; ++visit) {
                mbarrier_wait(smem.k_full(k_at.stage), k_at.parity);
                const Told told{smem.told[k_at.stage]};
                turns.take();
                wgmma_fence();
                start_scores(s, own_rows, smem.k + k_at.stage * KV_BYTES);
                mbarrier_wait(smem.v_full(v_at.stage), v_at.parity);
                wgmma_fence();
                start_output(o, p, smem.v + v_at.stage * KV_BYTES);
                turns.pass();
                const TileMask mask = mask_of(told);
                wgmma_wait<OVERLAP>();  // S is there; P V of the tile before may still run
                if (!OVERLAP) pin(o[0]);
                pin(s[0]);
                warp_arrive(smem.k_empty(k_at.stage), at.lane);
                // The next Q may come.
                if (visit + 1 == mine) warp_arrive(smem.q_empty(), at.lane);
                k_at.advance();
                exponentials(mask);
                // V has been there for long. But without this loop, over which it moves nothing,
                // ptxas puts the wait for P V before the exponentials that run beside it.
                if (OVERLAP) mbarrier_wait(smem.v_full(v_at.stage), v_at.parity);
                wgmma_wait<0>();
                pin(o[0]);
                warp_arrive(smem.v_empty(v_at.stage), at.lane);
                v_at.advance();
                softmax.rescale(o);
                to_p(mask);
            }
            if (mine > 0) {
                mbarrier_wait(smem.v_full(v_at.stage), v_at.parity);
                wgmma_fence();
                start_output(o, p, smem.v + v_at.stage * KV_BYTES);
                wgmma_wait<0>();
                pin(o[0]);
                warp_arrive(smem.v_empty(v_at.stage), at.lane);
                v_at.advance();
            }
            // The others go on: their tiles are let go, and turns passed on, as they come.
            if (LEAVES_EARLY) {
#pragma unroll 1
                for (int visit = mine; visit < count; ++visit) {
                    if (visit > 0) {
                        turns.take();
                        turns.pass();
                    }
                    mbarrier_wait(smem.k_full(k_at.stage), k_at.parity);
                    warp_arrive(smem.k_empty(k_at.stage), at.lane);
                    k_at.advance();
                    mbarrier_wait(smem.v_full(v_at.stage), v_at.parity);
                    warp_arrive(smem.v_empty(v_at.stage), at.lane);
                    v_at.advance();
                }
            }
            float* const lse_rows = lse + i64(turn.head) * seqlen_q + q0;
            softmax.finish(o, scale, extras, lse_rows, q_rows, at, nullptr, traffic);
            store_output(o, out + batch * out_strides.batch + head * out_strides.head +
                                q0 * out_strides.row,
                         out_strides.row, q_rows, at, traffic);
        }
        turns.end();
    }
    TRAFFIC_FLUSH(traffic);
}
