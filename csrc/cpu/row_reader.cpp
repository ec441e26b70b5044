#include "cpu/row_reader.h"

namespace ngram_ple::cpu {

RowReader::RowReader(const TableView& table, OutType out, uint8_t* to, const TableBlocks* blocks)
    : table_(table),
      blocks_(blocks),
      args_{table.format, table.global_scale == nullptr ? 1.0f : *table.global_scale, table.scale_is_bf16},
      decoder_(find_row_decoder(table.format.format, out)),
      out_row_bytes_(table.out_row_bytes(out)),
      to_(to) {}

void RowReader::turn() {
  decode_block(1 - current_, waiting_);
  waiting_ = queued_;
  queued_ = 0;
  current_ = 1 - current_;
}

void RowReader::finish() {
  turn();
  turn();
}

void RowReader::decode_block(int which, int64_t count) {
  if (count == 0) return;
  decoder_(args_, block_[which], count, to_);
  to_ += count * out_row_bytes_;
}

}  // namespace ngram_ple::cpu
