#include "cpu/lookup.h"

#include <vector>

#include "cpu/row_reader.h"

namespace ngram_ple::cpu {
namespace {

struct Offset {
  const IntArray& ids;
  int64_t first;
  int64_t operator[](int64_t i) const { return ids[first + i]; }
};

struct Counting {
  int64_t first;
  int64_t operator[](int64_t i) const { return first + i; }
};

}  // namespace

void lookup(const IntArray& ids, const TableView& table, OutType out_type, int64_t begin, int64_t end,
            uint8_t* out, const TableBlocks* blocks) {
  RowReader reader(table, out_type, out, blocks);
  reader.read(Offset{ids, begin}, end - begin);
  reader.finish();
}

void embed(const Hasher& hasher, const TableView& table, OutType out_type, int64_t begin, int64_t end,
           uint8_t* out, const TableBlocks* blocks) {
  constexpr int64_t kTokens = 4;
  const int64_t heads = hasher.batch().num_heads();
  std::vector<int64_t> ids(static_cast<size_t>(kTokens * heads));
  RowReader reader(table, out_type, out, blocks);
  for (int64_t t = begin; t < end; t += kTokens) {
    const int64_t stop = std::min(t + kTokens, end);
    hasher.ids(t, stop, ids.data());
    reader.read(ids.data(), (stop - t) * heads);
  }
  reader.finish();
}

void decode(const TableView& rows, OutType out_type, int64_t begin, int64_t end, uint8_t* out) {
  RowReader reader(rows, out_type, out);
  reader.read(Counting{rows.row_start + begin}, end - begin);
  reader.finish();
}

}  // namespace ngram_ple::cpu
