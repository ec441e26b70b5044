// Rows and scales from two places of files, checked and put together in a table's slots.
#pragma once

#include <cstdint>

#include "core/row_format.h"

namespace ngram_ple::cpu {

enum class ScaleType : uint8_t { e4m3, bf16, fp32 };  // as stored; bf16 becomes fp32 in a slot

// A row's values or its scales, one row after another from `offset` of an open file.
struct FileRows {
  int fd;
  int64_t offset;
};

struct ReadResult {
  enum Status : uint8_t { ok, rows_failed, scales_failed, bad_scale };
  Status status = ok;
  int64_t at = 0;  // byte offset where reading failed, or row (from 0) with a NaN or infinite scale
  int error = 0;   // errno; 0 where the file ends
};

// Reads `num_rows` rows and their scales and fills the slots whole. Works in pieces that stay in a core's
// cache, so that the slots' memory is touched once.
ReadResult read_slots(const RowFormat& format, int64_t num_rows, FileRows rows, FileRows scales,
                      ScaleType stored, uint8_t* slots);

}  // namespace ngram_ple::cpu
