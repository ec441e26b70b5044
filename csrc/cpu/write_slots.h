// Rows and their scales, which checkpoints hold apart, side by side in a table's slots.
#pragma once

#include <cstdint>

#include "core/row_format.h"

namespace ngram_ple::cpu {

// Fills `num_rows` slots whole, padding included, from rows [num_rows, format.row_bytes] and scales
// [num_rows, format.scale_bytes].
void write_slots(const RowFormat& format, int64_t num_rows, const uint8_t* rows, const uint8_t* scales,
                 uint8_t* slots);

}  // namespace ngram_ple::cpu
