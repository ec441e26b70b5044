// Where the rows of a table lie: the arguments of every kernel that reads rows.
#pragma once

#include <cstdint>

#include "core/portability.h"
#include "core/row_format.h"

namespace ngram_ple {

// Rows [row_start, row_end) of a table. Scales stored inside the slot and scales stored apart look the same
// here: both are `scales + row * scale_stride`.
struct TableView {
  const uint8_t* rows;    // row_stride bytes apart
  const uint8_t* scales;  // scale_stride bytes apart; null when the rows carry none
  int64_t row_stride;
  int64_t scale_stride;
  const float* global_scale;  // one value, null when the format has none
  int64_t row_start;          // global number of the first row held
  int64_t row_end;
  RowFormat format;
  bool scale_is_bf16;  // fp8-rowwise scales stored apart may be bf16; everywhere else they are fp32

  NGP_HOST_DEVICE bool owns(int64_t id) const { return id >= row_start && id < row_end; }
  NGP_HOST_DEVICE const uint8_t* row(int64_t id) const { return rows + (id - row_start) * row_stride; }
  NGP_HOST_DEVICE const uint8_t* scale(int64_t id) const { return scales + (id - row_start) * scale_stride; }

  // Bytes of one row of the result.
  NGP_HOST_DEVICE int64_t out_row_bytes(OutType out) const {
    return out == OutType::bytes ? format.slot_bytes : format.head_dim * out_element_bytes(out);
  }
};

}  // namespace ngram_ple
