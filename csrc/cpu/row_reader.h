// Reads rows in any order, their memory requested ahead: while one block of rows decodes, the next is on its
// way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/table_blocks.h"
#include "cpu/row_decoder.h"

namespace ngram_ple::cpu {

class RowReader {
 public:
  // `blocks`: where the rows lie when that is not in one block, as `table` alone would have it.
  RowReader(const TableView& table, OutType out, uint8_t* to, const TableBlocks* blocks = nullptr);

  // Queues `count` rows; their result follows that of the rows queued before.
  template <class Ids>
  void read(const Ids& ids, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      if (queued_ == kBlock) turn();
      request(ids[i]);
    }
  }

  // Decodes what is still queued.
  void finish();

 private:
  static constexpr int64_t kBlock = 16;
  static constexpr int64_t kLine = 64;

  void request(int64_t id) {
    RowAddress& address = block_[current_][queued_++];
    if (!table_.owns(id)) {
      address = {nullptr, nullptr};
      return;
    }
    if (blocks_ != nullptr) {
      const uint8_t* row = blocks_->row(table_, id);
      address = {row, row + table_.format.scale_offset};
    } else {
      address = {table_.row(id), table_.scales == nullptr ? nullptr : table_.scale(id)};
    }
    for (int64_t at = 0; at < table_.row_stride; at += kLine) __builtin_prefetch(address.row + at);
    if (address.scale != nullptr) __builtin_prefetch(address.scale);
  }
  void turn();
  void decode_block(int which, int64_t count);

  TableView table_;
  const TableBlocks* blocks_;
  DecodeArgs args_;
  RowDecoder decoder_;
  int64_t out_row_bytes_;
  uint8_t* to_;
  RowAddress block_[2][kBlock];
  int current_ = 0;
  int64_t queued_ = 0;
  int64_t waiting_ = 0;  // rows of the other block, requested and not yet decoded
};

}  // namespace ngram_ple::cpu
