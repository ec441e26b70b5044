// Lookups in pinned tables through a reader: opening and closing one, pinned_lookup, counters. A reader is
// known by a number, so that a graph of torch's can hold it; a number that is none ends in a sentence. In
// CUDA builds alone.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#ifdef NGRAM_PLE_GPU_CUDA
#include <unistd.h>

#include <map>
#include <memory>
#include <mutex>

#include "gpu/faults.h"
#include "gpu/launch.h"
#include "gpu/pinned_memory.h"
#include "gpu/pinned_reader.h"
#endif

namespace ngram_ple::bindings {
namespace {

#ifdef NGRAM_PLE_GPU_CUDA

// A reader with the memory that it uses.
struct OpenReader {
  Tensor slots, device_memory, pinned_memory;
  TableView table;
  std::unique_ptr<Registrar> device;
  std::unique_ptr<gpu::PinnedReader> reader;
  pid_t owner = getpid();

  ~OpenReader() {
    if (getpid() != owner) {  // neither threads nor a device are left in a forked child
      (void)reader.release();
      return;
    }
    device->wait();
  }
};

class OpenReaders {
 public:
  int64_t add(std::shared_ptr<OpenReader> reader) {
    const std::lock_guard<std::mutex> lock(mutex_);
    readers_.emplace(++last_, std::move(reader));
    return last_;
  }
  std::shared_ptr<OpenReader> find(const char* op, int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = readers_.find(number);
    NGP_CHECK(found != readers_.end(), op, ": reader must be an open one, got ", number,
              ", which was closed or never opened");
    return found->second;
  }
  std::shared_ptr<OpenReader> remove(int64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = readers_.find(number);
    if (found == readers_.end()) return nullptr;
    std::shared_ptr<OpenReader> reader = std::move(found->second);
    readers_.erase(found);
    return reader;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<OpenReader>> readers_;
  int64_t last_ = 0;
};

OpenReaders& open_readers() {
  static OpenReaders* const readers = new OpenReaders();  // threads may outlive static objects
  return *readers;
}

uint8_t* bytes_of(const Tensor& tensor) { return static_cast<uint8_t*>(tensor.data_ptr()); }

RowFormat reader_format(const std::string& format, int64_t head_dim) {
  const std::optional<Format> parsed = parse_format(format);
  NGP_CHECK(parsed.has_value(), "open_reader: format must be one of bf16, fp16, fp32, fp8, fp8-rowwise, ",
            "nvfp4, got ", format);
  return make_row_format(*parsed, head_dim);
}

gpu::Way way_of(const std::string& way) {
  if (way == "zero-copy") return gpu::Way::zero_copy;
  if (way == "ordered") return gpu::Way::ordered;
  NGP_CHECK(way == "staged", "pinned_lookup: way must be zero-copy, ordered or staged, got ", way);
  return gpu::Way::staged;
}

gpu::ReaderOptions reader_options(int64_t max_ids, int64_t threads) {
  NGP_CHECK(max_ids >= 1 && max_ids <= INT32_MAX, "open_reader: max_ids must be within 1..2^31 - 1, got ",
            max_ids);
  NGP_CHECK(threads >= 0 && threads <= 1024, "open_reader: threads must be within 0..1024, got ", threads);
  gpu::ReaderOptions options;
  options.max_ids = max_ids;
  options.threads = static_cast<int>(threads);
  return options;
}

// [2] on the CPU: bytes of device and of pinned memory that a reader needs.
Tensor reader_bytes(Tensor slots, std::string format, int64_t head_dim, int64_t max_ids, int64_t threads) {
  const RowFormat row = reader_format(format, head_dim);
  const gpu::ReaderOptions options = reader_options(max_ids, threads);
  Tensor bytes = allocate("reader_bytes", slots, {2}, ScalarType::Long);
  int64_t* const values = static_cast<int64_t*>(bytes.data_ptr());
  values[0] = gpu::PinnedReader::device_bytes(row, options);
  values[1] = gpu::PinnedReader::pinned_bytes(row, options);
  return bytes;
}

// Bytes are counted by reader_bytes; the memory's size is checked here.
int64_t open_reader(Tensor slots, Tensor device_memory, Tensor pinned_memory, std::string format,
                    int64_t head_dim, int64_t row_start, int64_t max_ids, int64_t threads) {
  const char* const op = "open_reader";
  const RowFormat row = reader_format(format, head_dim);
  const gpu::ReaderOptions options = reader_options(max_ids, threads);
  const int64_t device_bytes = gpu::PinnedReader::device_bytes(row, options);
  const int64_t pinned_bytes = gpu::PinnedReader::pinned_bytes(row, options);
  NGP_CHECK(!device_memory.is_cpu() && device_memory.numel() >= device_bytes, op,
            ": device_memory must be uint8 [", device_bytes, "] on a GPU, got ", describe(device_memory));
  NGP_CHECK(pinned_memory.is_cpu() && pinned_memory.numel() >= pinned_bytes, op,
            ": pinned_memory must be uint8 [", pinned_bytes, "] in pinned memory, got ",
            describe(pinned_memory));
  const torch::stable::accelerator::DeviceGuard guard(device_memory.get_device_index());
  for (const Tensor& memory : {slots, pinned_memory}) {
    NGP_CHECK(gpu::device_address(memory.data_ptr(), memory.numel()) == memory.data_ptr(), op,
              ": the GPU must read pinned memory at its host address, got ", describe(memory));
  }
  auto made = std::make_shared<OpenReader>();
  made->slots = slots;
  made->device_memory = device_memory;
  made->pinned_memory = pinned_memory;
  made->device = gpu::make_registrar(device_memory.get_device_index());
  TableView& table = made->table;
  table.format = row;
  table.rows = bytes_of(slots);
  table.row_stride = row.slot_bytes;
  table.row_start = row_start;
  table.row_end = row_start + slots.size(0);
  made->reader = std::make_unique<gpu::PinnedReader>(table, options, bytes_of(device_memory),
                                                     bytes_of(pinned_memory), current_stream(device_memory));
  made->device->wait();
  return open_readers().add(std::move(made));
}

// Waits for the device; lookups that are being launched keep the reader until they are.
void close_reader(Tensor, int64_t reader) { open_readers().remove(reader); }

// int64 [9] on the CPU, in the order of ngram_ple.tables.reader.COUNTERS.
Tensor reader_counters(Tensor slots, int64_t reader) {
  const gpu::ReaderCounters found = open_readers().find("reader_counters", reader)->reader->counters();
  const int64_t values[] = {static_cast<int64_t>(found.batches.batches),
                            static_cast<int64_t>(found.batches.ids),
                            static_cast<int64_t>(found.batches.rows),
                            static_cast<int64_t>(found.batches.rows_by_gpu),
                            static_cast<int64_t>(found.zero_copy_calls),
                            static_cast<int64_t>(found.zero_copy_ids),
                            found.stager.batches,
                            found.stager.nanoseconds,
                            found.stager.failed_batches};
  constexpr int64_t kCount = sizeof(values) / sizeof(values[0]);
  Tensor out = allocate("reader_counters", slots, {kCount}, ScalarType::Long);
  std::copy(std::begin(values), std::end(values), static_cast<int64_t*>(out.data_ptr()));
  return out;
}

// The checked arguments of one call.
struct PinnedLookup {
  std::shared_ptr<OpenReader> opened;
  IntArray ids;
  TableView table;
  OutType out_type;
  gpu::Way way;
  int sms;
  std::vector<int64_t> shape;

  PinnedLookup(const Tensor& ids_tensor, const TableArguments& arguments, const std::string& out_dtype,
               int64_t reader, const std::string& way_name, int64_t most_sms)
      : opened(open_readers().find("pinned_lookup", reader)),
        ids(int_array("pinned_lookup", "ids", ids_tensor)),
        table(table_view("pinned_lookup", "weight", arguments, "ids", ids_tensor)),
        out_type(bindings::out_type("pinned_lookup", out_dtype)),
        way(way_of(way_name)),
        sms(static_cast<int>(most_sms)),
        shape(shape_of(ids_tensor)) {
    const TableView& own = opened->table;
    NGP_CHECK(table.rows == own.rows && table.row_start == own.row_start && table.row_end == own.row_end &&
                  table.format.format == own.format.format && table.format.head_dim == own.format.head_dim,
              "pinned_lookup: weight must be the table of reader ", reader, ", got ",
              describe(arguments.weight));
    NGP_CHECK(ids_tensor.get_device_index() == opened->device_memory.get_device_index(),
              "pinned_lookup: ids must be on the reader's device, got ", describe(ids_tensor));
    NGP_CHECK(most_sms >= 0 && most_sms <= INT32_MAX, "pinned_lookup: sms must be >= 0, got ", most_sms);
    shape.push_back(out_row_elements(table, out_type));
  }

  void run(const Tensor& ids_tensor, const Tensor& out) const {
    const int64_t count = ids_tensor.numel();
    if (count == 0) return;
    const torch::stable::accelerator::DeviceGuard guard(ids_tensor.get_device_index());
    const gpu::Stream stream = current_stream(ids_tensor);
    if (values_are_checked()) gpu::check_ids("pinned_lookup", ids, count, table, false, stream);
    opened->reader->lookup(ids, count, table, out_type, bytes_of(out), way, sms, stream,
                           gpu::capture_id(stream));
  }
};

Tensor pinned_lookup(Tensor ids, Tensor weight, OptionalTensor global_scale, int64_t reader, std::string way,
                     int64_t sms, std::string format, std::string out_dtype, int64_t head_dim,
                     int64_t row_start) {
  const OptionalTensor scale;
  const TableArguments table{weight, scale, global_scale, format, head_dim, row_start, -1};
  const PinnedLookup call(ids, table, out_dtype, reader, way, sms);
  Tensor out = allocate("pinned_lookup", ids, call.shape, scalar_type_of(call.out_type));
  call.run(ids, out);
  return out;
}

void pinned_lookup_out(Tensor ids, Tensor weight, OptionalTensor global_scale, int64_t reader,
                       std::string way, int64_t sms, std::string format, std::string out_dtype,
                       int64_t head_dim, int64_t row_start, Tensor out) {
  const OptionalTensor scale;
  const TableArguments table{weight, scale, global_scale, format, head_dim, row_start, -1};
  const PinnedLookup call(ids, table, out_dtype, reader, way, sms);
  check_out("pinned_lookup", out, scalar_type_of(call.out_type), call.shape, "ids", ids);
  check_apart("pinned_lookup", out, {{"ids", ids}});
  call.run(ids, out);
}

// Finds rows on the current stream and brings them on `stream`: places is int32 like ids, rows are slots.
void bring_rows(Tensor ids, Tensor weight, int64_t reader, int64_t stream, Tensor places, Tensor rows) {
  const char* const op = "bring_rows";
  const std::shared_ptr<OpenReader> opened = open_readers().find(op, reader);
  const IntArray values = int_array(op, "ids", ids);
  const int64_t count = ids.numel(), slot_bytes = opened->table.format.slot_bytes;
  NGP_CHECK(weight.data_ptr() == opened->table.rows, op, ": weight must be the table of reader ", reader,
            ", got ", describe(weight));
  NGP_CHECK(count <= opened->reader->max_ids(), op, ": ids must be at most ", opened->reader->max_ids(),
            ", got ", describe(ids));
  NGP_CHECK(slot_bytes % 16 == 0, op, ": rows must have a multiple of 16 bytes, got ", slot_bytes);
  NGP_CHECK(ids.get_device_index() == opened->device_memory.get_device_index(), op,
            ": ids must be on the reader's device, got ", describe(ids));
  check_out(op, places, ScalarType::Int, shape_of(ids), "ids", ids);
  check_out(op, rows, ScalarType::Byte, {count, slot_bytes}, "ids", ids);
  if (count == 0) return;
  const torch::stable::accelerator::DeviceGuard guard(ids.get_device_index());
  const gpu::Stream current = current_stream(ids);
  if (values_are_checked()) gpu::check_ids(op, values, count, opened->table, false, current);
  opened->reader->bring(values, count, static_cast<int32_t*>(places.data_ptr()), bytes_of(rows), current,
                        reinterpret_cast<gpu::Stream>(stream), gpu::capture_id(current));
}

STABLE_TORCH_LIBRARY_IMPL(ngram_ple, CUDA, m) {
  m.impl("bring_rows", TORCH_BOX(&bring_rows));
  m.impl("open_reader", TORCH_BOX(&open_reader));
  m.impl("pinned_lookup", TORCH_BOX(&pinned_lookup));
  m.impl("pinned_lookup.out", TORCH_BOX(&pinned_lookup_out));
}

STABLE_TORCH_LIBRARY_IMPL(ngram_ple, CPU, m) {
  m.impl("reader_bytes", TORCH_BOX(&reader_bytes));
  m.impl("close_reader", TORCH_BOX(&close_reader));
  m.impl("reader_counters", TORCH_BOX(&reader_counters));
}

#endif

}  // namespace
}  // namespace ngram_ple::bindings
