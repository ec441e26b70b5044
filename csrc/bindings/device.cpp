#include "bindings/device.h"

#include <torch/csrc/stable/accelerator.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "bindings/stream_symbol.h"

namespace ngram_ple::bindings {

bool values_are_checked() {
  static const bool checked = [] {
    const char* value = std::getenv("NGRAM_PLE_CHECK");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return checked;
}

void* current_stream(const torch::stable::Tensor& tensor) {
  static const GetStream get_stream = require_get_stream();
  void* stream = nullptr;
  // torch's macro for this check has another name on 2.11 than on later versions
  if (get_stream(tensor.get_device_index(), &stream) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("torch gave no current stream for the device of the tensor");
  }
  return stream;
}

}  // namespace ngram_ple::bindings
