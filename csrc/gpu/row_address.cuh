// Where one row of a table lies.
#pragma once

#include "core/table_blocks.h"
#include "gpu/runtime.h"

namespace ngram_ple::gpu {

struct RowAddress {
  const uint8_t* values = nullptr;
  const uint8_t* scales = nullptr;
};

template <class Ids>
NGP_DEVICE RowAddress address_of(const Ids&, const TableView& table, int64_t id) {
  const int64_t row = id - table.row_start;
  return {table.rows + row * table.row_stride, table.scales + row * table.scale_stride};
}

// Ids of a table that lies in blocks. A type of its own: the kernels of one block carry nothing of it.
template <class Ids>
struct InBlocks : Ids {
  TableBlocks blocks;
};

template <class Ids>
NGP_DEVICE RowAddress address_of(const InBlocks<Ids>& ids, const TableView& table, int64_t id) {
  const uint8_t* values = ids.blocks.row(table, id);
  return {values, values + table.format.scale_offset};
}

NGP_DEVICE const uint8_t* shuffle(const uint8_t* pointer, uint32_t from_lane) {
  const int64_t bits = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  return reinterpret_cast<const uint8_t*>(static_cast<uintptr_t>(shuffle(bits, from_lane)));
}

}  // namespace ngram_ple::gpu
