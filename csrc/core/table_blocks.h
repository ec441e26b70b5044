// A table whose rows lie in several equal blocks of memory, as the ranks of a group hold them.
#pragma once

#include "core/fast_div.h"
#include "core/table_view.h"

namespace ngram_ple {

// Beside a TableView that describes one of them: strides and alignment are the same for all, scales lie
// inside the rows. Block b holds rows [b rows_per_block, (b + 1) rows_per_block) and begins at begins[b].
struct TableBlocks {
  const uint8_t* const* begins;
  FastDiv<uint64_t> rows_per_block;

  NGP_HOST_DEVICE const uint8_t* row(const TableView& table, int64_t id) const {
    const auto at = divide(static_cast<uint64_t>(id), rows_per_block);
    return begins[at.quotient] + static_cast<int64_t>(at.remainder) * table.row_stride;
  }
};

}  // namespace ngram_ple
