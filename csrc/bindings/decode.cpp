// decode: [..., head_dim] values of rows that are at hand as stored.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include "bindings/arguments.h"
#include "bindings/device.h"
#include "bindings/register.h"
#include "cpu/lookup.h"
#ifdef NGRAM_PLE_GPU
#include "gpu/launch.h"
#endif

namespace ngram_ple::bindings {
namespace {

// The checked arguments of one call.
struct Decode {
  TableView view;
  OutType out_type;
  std::vector<int64_t> shape;

  Decode(const Tensor& rows, const TableArguments& arguments, const std::string& out_dtype)
      : view(table_view("decode", "rows", arguments, "rows", rows)),
        out_type(bindings::out_type("decode", out_dtype)),
        shape(shape_of(rows)) {
    shape.back() = out_row_elements(view, out_type);
  }

  void run(const Tensor& rows, const Tensor& out_tensor) const {
    const int64_t count = view.row_end;
    if (count == 0) return;
    uint8_t* out = static_cast<uint8_t*>(out_tensor.data_ptr());
    if (rows.is_cpu()) {
      const int64_t row_bytes = view.out_row_bytes(out_type);
      parallel_over(count, 1, [&](int64_t begin, int64_t end) {
        cpu::decode(view, out_type, begin, end, out + begin * row_bytes);
      });
      return;
    }
#ifdef NGRAM_PLE_GPU
    const torch::stable::accelerator::DeviceGuard guard(rows.get_device_index());
    gpu::decode(view, count, out_type, out, current_stream(rows));
#endif
  }
};

Tensor decode(Tensor rows, OptionalTensor scale, OptionalTensor global_scale, std::string format,
              std::string out_dtype, int64_t head_dim) {
  const Decode call(rows, {rows, scale, global_scale, format, head_dim}, out_dtype);
  Tensor out = allocate("decode", rows, call.shape, scalar_type_of(call.out_type));
  call.run(rows, out);
  return out;
}

void decode_out(Tensor rows, OptionalTensor scale, OptionalTensor global_scale, std::string format,
                std::string out_dtype, int64_t head_dim, Tensor out) {
  const TableArguments table{rows, scale, global_scale, format, head_dim};
  const Decode call(rows, table, out_dtype);
  check_out("decode", out, scalar_type_of(call.out_type), call.shape, "rows", rows);
  check_apart("decode", out, table, "rows");
  call.run(rows, out);
}

}  // namespace

NGP_REGISTER("decode", decode)
NGP_REGISTER("decode.out", decode_out)

}  // namespace ngram_ple::bindings
