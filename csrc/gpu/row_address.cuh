// Where one row of a table lies.
#pragma once

#include "core/table_view.h"
#include "gpu/runtime.h"

namespace ngram_ple::gpu {

struct RowAddress {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
};

NGP_DEVICE RowAddress address_of(const TableView& table, int64_t id) {
  const int64_t row = id - table.row_start;
  return {table.rows + row * table.row_stride, table.scales + row * table.scale_stride};
}

NGP_DEVICE const uint8_t* shuffle(const uint8_t* pointer, uint32_t from_lane) {
  const int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(shuffle(bits, from_lane)));
}

}  // namespace ngram_ple::gpu
