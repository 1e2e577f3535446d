// Philox4x32-7: four random words for a counter of four words and a 64-bit key.
//
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); seven rounds are
// the fewest that pass BigCrush there. fa_kernels/dropout.py is the same in NumPy.
// Dropout counts (group of rows, group of keys, head, batch): the mask depends on the element
// alone, so any tiling and the backward pass draw it again. 16 bits decide about an element, so a
// draw serves eight: rows r, r + 8 and keys c, c + 1, c + 8, c + 9 of a block of 16 x 16. These
// are what one lane holds of two fragments m16n8 of C: tensor cores draw without a shuffle.
#pragma once

#include "io.cuh"

__device__ __forceinline__ uint4 philox(uint4 counter, u64 seed) {
    unsigned key0 = static_cast<unsigned>(seed), key1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
    for (int round = 0; round < 7; ++round) {
        const unsigned low_a = 0xD2511F53u * counter.x, high_a = __umulhi(0xD2511F53u, counter.x);
        const unsigned low_b = 0xCD9E8D57u * counter.z, high_b = __umulhi(0xCD9E8D57u, counter.z);
        counter = make_uint4(high_b ^ counter.y ^ key0, low_b, high_a ^ counter.w ^ key1, low_a);
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}
