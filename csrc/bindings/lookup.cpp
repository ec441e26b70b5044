// lookup: [*ids.shape, head_dim] decoded rows of a table.
#include "cpu/lookup.h"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/faults.h"
#include "gpu/launch.h"
#endif

namespace ngram_ple::bindings {
namespace {

// The checked arguments of one call.
struct Lookup {
  IntArray ids;
  TableView table;
  bool whole_table;  // no range was given: every id but -1 should have a row
  OutType out_type;
  std::vector<int64_t> shape;

  Lookup(const Tensor& ids_tensor, const TableArguments& arguments, const std::string& out_dtype)
      : ids(int_array("lookup", "ids", ids_tensor)),
        table(table_view("lookup", "weight", arguments, "ids", ids_tensor)),
        whole_table(arguments.row_start == 0 && arguments.row_end == -1),
        out_type(bindings::out_type("lookup", out_dtype)),
        shape(shape_of(ids_tensor)) {
    shape.push_back(out_row_elements(table, out_type));
  }

  void run(const Tensor& ids_tensor, const Tensor& out_tensor) const {
    const int64_t count = ids_tensor.numel();
    if (count == 0) return;
    uint8_t* out = static_cast<uint8_t*>(out_tensor.data_ptr());
    if (ids_tensor.is_cpu()) {
      const int64_t row_bytes = table.out_row_bytes(out_type);
      parallel_over(count, 1, [&](int64_t begin, int64_t end) {
        cpu::lookup(ids, table, out_type, begin, end, out + begin * row_bytes);
      });
      return;
    }
#ifdef NGRAM_PLE_GPU
    const torch::stable::accelerator::DeviceGuard guard(ids_tensor.get_device_index());
    const gpu::Stream stream = current_stream(ids_tensor);
    if (values_are_checked()) gpu::check_ids("lookup", ids, count, table, whole_table, stream);
    gpu::lookup(ids, count, table, out_type, out, stream);
#endif
  }
};

Tensor lookup(Tensor ids, Tensor weight, OptionalTensor scale, OptionalTensor global_scale,
              std::string format, std::string out_dtype, int64_t head_dim, int64_t row_start,
              int64_t row_end) {
  const Lookup call(ids, {weight, scale, global_scale, format, head_dim, row_start, row_end}, out_dtype);
  Tensor out = allocate("lookup", ids, call.shape, scalar_type_of(call.out_type));
  call.run(ids, out);
  return out;
}

void lookup_out(Tensor ids, Tensor weight, OptionalTensor scale, OptionalTensor global_scale,
                std::string format, std::string out_dtype, int64_t head_dim, int64_t row_start,
                int64_t row_end, Tensor out) {
  const TableArguments table{weight, scale, global_scale, format, head_dim, row_start, row_end};
  const Lookup call(ids, table, out_dtype);
  check_out("lookup", out, scalar_type_of(call.out_type), call.shape, "ids", ids);
  check_apart("lookup", out, {{"ids", ids}});
  check_apart("lookup", out, table, "weight");
  call.run(ids, out);
}

}  // namespace

NGP_REGISTER("lookup", lookup)
NGP_REGISTER("lookup.out", lookup_out)

}  // namespace ngram_ple::bindings
