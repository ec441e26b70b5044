#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "gpu/pinned_reader.h"

namespace ngram_ple::gpu {
namespace {

// Few blocks fill the bus, or the unit that translates addresses; more would only take multiprocessors from
// other work.
FetchOptions fetch_options(int64_t num_ids, bool staged, int sms, uint32_t patience) {
  constexpr int64_t kLarge = 32768;
  FetchOptions options{4, 2, patience};
  if (staged && num_ids > kLarge) options = {6, 1, patience};
  if (sms > 0 && sms < options.blocks) options.blocks = sms;
  // Workers that are awake bring 1000 rows in some 4 us; others may be long in coming.
  if (patience == 0) options.patience = 40'000 + 4 * static_cast<uint32_t>(num_ids);
  return options;
}

int64_t stride_of(const RowFormat& format) { return round_up(format.slot_bytes, 16); }

int64_t distinct_bytes(const RowFormat& format, const ReaderOptions& options) {
  int64_t bytes = 0;
  lay_out_distinct(nullptr, options.max_ids, stride_of(format), &bytes);
  return bytes;
}

int64_t staged_ids(const ReaderOptions& options) { return options.threads > 0 ? options.max_ids : 0; }

int64_t staging_bytes(const RowFormat& format, const ReaderOptions& options) {
  int64_t bytes = 0;
  lay_out_staging(nullptr, staged_ids(options), stride_of(format), &bytes);
  return bytes;
}

// The rows that a batch has brought to the device, as a table.
TableView brought_rows(const DistinctSpace& space, const TableView& table) {
  TableView view = table;
  view.rows = space.rows;
  view.row_stride = space.stride;
  view.scales = table.format.scale_bytes == 0 ? nullptr : space.rows + table.format.scale_offset;
  view.scale_stride = table.format.scale_bytes == 0 ? 0 : space.stride;
  view.scale_is_bf16 = false;
  view.row_start = 0;
  view.row_end = space.capacity;
  return view;
}

}  // namespace

int64_t PinnedReader::device_bytes(const RowFormat& format, const ReaderOptions& options) {
  return 2 * distinct_bytes(format, options);
}

int64_t PinnedReader::pinned_bytes(const RowFormat& format, const ReaderOptions& options) {
  return 2 * staging_bytes(format, options);
}

PinnedReader::PinnedReader(const TableView& table, const ReaderOptions& options, uint8_t* device_memory,
                           uint8_t* pinned_memory, Stream stream)
    : table_(table), options_(options) {
  if (table.row_end - table.row_start >= kMostDistinctRows) {
    throw std::runtime_error("ordered and staged lookups take tables of less than 2^32 - 1 rows, got " +
                             std::to_string(table.row_end - table.row_start));
  }
  const int64_t stride = stride_of(table.format);
  std::vector<Staging> areas;
  for (Workspace& workspace : workspaces_) {
    workspace.space = lay_out_distinct(device_memory, options.max_ids, stride, nullptr);
    clear_distinct(workspace.space, stream);
    workspace.staging = lay_out_staging(pinned_memory, staged_ids(options), stride, nullptr);
    std::memset(static_cast<void*>(workspace.staging.words), 0, sizeof(StagingWords));
    const int64_t flags = workspace.staging.capacity / kChunkRows * kFlagStride;
    std::memset(workspace.staging.ready, 0, static_cast<size_t>(flags) * sizeof(uint32_t));
    areas.push_back(workspace.staging);
    device_memory += distinct_bytes(table.format, options);
    pinned_memory += staging_bytes(table.format, options);
  }
  if (options.threads > 0) {
    stager_ = std::make_unique<RowStager>(table.rows, table.row_stride, std::move(areas), options.threads,
                                          options.gather);
  }
  for (Workspace& workspace : workspaces_) {
    for (uint32_t piece = 0; piece < kMostPieces; ++piece) {
      workspace.calls[piece] = {stager_.get(), workspace.staging.words, piece};
    }
  }
}

PinnedReader::~PinnedReader() = default;

void PinnedReader::call_workers(void* stager) { static_cast<RowStager*>(stager)->begin(); }
void PinnedReader::call_for_few(void* data) {
  const PieceCall& call = *static_cast<const PieceCall*>(data);
  call.stager->begin_small(*call.words);
}

void PinnedReader::lookup(const IntArray& ids, int64_t num_ids, const TableView& table, OutType out_type,
                          uint8_t* out, Way way, int sms, Stream stream, uint64_t capture) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (way == Way::zero_copy) {
    ++zero_copy_calls_;
    zero_copy_ids_ += static_cast<uint64_t>(num_ids);
    return gpu::lookup(ids, num_ids, table, out_type, out, stream, sms);
  }
  const bool staged = way == Way::staged;
  if (staged || stager_ != nullptr) check_workers();
  Workspace& workspace = workspaces_[capture == 0 ? 0 : 1];
  workspace.last_use.wait_on(stream, capture);
  const int64_t id_bytes = ids.is_int64 ? 8 : 4, row_bytes = table.out_row_bytes(out_type);
  for (int64_t first = 0; first < num_ids; first += options_.max_ids) {
    const IntArray part{static_cast<const uint8_t*>(ids.data) + first * id_bytes, ids.is_int64};
    look_up_part(workspace, part, std::min(options_.max_ids, num_ids - first), table, out_type,
                 out + first * row_bytes, staged, sms, stream);
  }
  workspace.last_use.record(stream, capture);
}

void PinnedReader::bring(const IntArray& ids, int64_t num_ids, int32_t* places, uint8_t* rows, Stream stream,
                         Stream side, uint64_t capture) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check_workers();
  Workspace& workspace = workspaces_[capture == 0 ? 0 : 1];
  const DistinctSpace& space = workspace.space;
  const Listing listing{true, pieces_of(num_ids, space.stride).chunks, places};
  workspace.last_use.wait_on(stream, capture);
  find_distinct(ids, num_ids, table_.row_start, table_.row_end, space, workspace.staging, listing, stream);
  workspace.handover.pass(stream, side);
  bring_rows(space, workspace.staging, workspace.calls, workspace.branch, num_ids, rows, side);
  workspace.last_use.record(side, capture);
}

void PinnedReader::check_workers() {
  if (stager_ == nullptr) {
    throw std::runtime_error("pinned_lookup: the staged way needs a reader with threads, got one without");
  }
  const std::string error = stager_->take_error();
  if (!error.empty()) {
    throw std::runtime_error("pinned_lookup: a worker failed in an earlier lookup, whose rows are NaN: " +
                             error);
  }
}

void PinnedReader::look_up_part(Workspace& workspace, const IntArray& ids, int64_t num_ids,
                                const TableView& table, OutType out_type, uint8_t* out, bool staged, int sms,
                                Stream stream) {
  const DistinctSpace& space = workspace.space;
  const bool few = num_ids <= kListedWhole;
  const uint32_t* const awake = staged && options_.patience == 0 ? &workspace.staging.words->awake : nullptr;
  if (staged && few) {
    list_all(ids, num_ids, table_.row_start, table_.row_end, space, workspace.staging, awake, stream);
  } else {
    find_distinct(ids, num_ids, table_.row_start, table_.row_end, space, workspace.staging,
                  {staged, 0, nullptr, awake}, stream);
  }
  // Workers that are awake see the list by themselves, others have to be called; the GPU waits for neither.
  if (staged) {
    workspace.branch.fork(stream);
    if (few && awake != nullptr) {
      workspace.branch.call(&call_for_few, &workspace.calls[0]);
    } else {
      workspace.branch.call(&call_workers, stager_.get());
    }
  }
  fetch_rows(table_, space, workspace.staging, staged, fetch_options(num_ids, staged, sms, options_.patience),
             stream);
  const IntArray source{space.source, false};
  gpu::lookup(source, num_ids, brought_rows(space, table), out_type, out, stream, sms);
  if (staged) workspace.branch.join(stream);
}

ReaderCounters PinnedReader::counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ReaderCounters counters;
  counters.zero_copy_calls = zero_copy_calls_;
  counters.zero_copy_ids = zero_copy_ids_;
  if (stager_ != nullptr) counters.stager = stager_->counters();
  for (const Workspace& workspace : workspaces_) {
    const volatile BatchTotals& totals = workspace.staging.words->totals;
    counters.batches.batches += totals.batches;
    counters.batches.ids += totals.ids;
    counters.batches.rows += totals.rows;
    counters.batches.rows_by_gpu += totals.rows_by_gpu;
  }
  return counters;
}

}  // namespace ngram_ple::gpu
