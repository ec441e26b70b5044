// Looking rows up on the CPU, by ids that exist or by ids hashed on the way.
#pragma once

#include <cstdint>

#include "core/int_array.h"
#include "core/table_blocks.h"
#include "cpu/ngram_ids.h"

namespace ngram_ple::cpu {

// Rows ids[begin .. end) of the table, decoded, to `out` (the place of row `begin`). The table may lie in
// blocks, of which `table` then describes one, but for row_start and row_end.
void lookup(const IntArray& ids, const TableView& table, OutType out_type, int64_t begin, int64_t end,
            uint8_t* out, const TableBlocks* blocks = nullptr);

// The H rows of each token in [begin, end), decoded, to `out` (the place of token `begin`). Ids live in a few
// cache lines only.
void embed(const Hasher& hasher, const TableView& table, OutType out_type, int64_t begin, int64_t end,
           uint8_t* out, const TableBlocks* blocks = nullptr);

// Rows [begin, end) of a contiguous block, decoded, to `out` (the place of row `begin`).
void decode(const TableView& rows, OutType out_type, int64_t begin, int64_t end, uint8_t* out);

}  // namespace ngram_ple::cpu
