#include "bindings/device.h"

#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>

#include <cstdlib>
#include <stdexcept>
#include <string_view>

namespace ngram_ple::bindings {
namespace {

using GetStream = AOTITorchError (*)(int32_t device_index, void** stream);

// A CPU torch has no such symbol, so it is looked for in the library that a CUDA or ROCm torch has loaded.
GetStream find_get_stream() {
  for (const char* library : {"libtorch_cuda.so", "libtorch_hip.so"}) {
    void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) continue;
    void* symbol = dlsym(handle, "aoti_torch_get_current_cuda_stream");
    dlclose(handle);  // gives back RTLD_NOLOAD's reference only
    if (symbol != nullptr) return reinterpret_cast<GetStream>(symbol);
  }
  return nullptr;
}

}  // namespace

bool values_are_checked() {
  static const bool checked = [] {
    const char* value = std::getenv("NGRAM_PLE_CHECK");
    return value != nullptr && std::string_view(value) == "1";
  }();
  return checked;
}

void* current_stream(const torch::stable::Tensor& tensor) {
  static const GetStream get_stream = find_get_stream();
  if (get_stream == nullptr)
    throw std::runtime_error("this torch has no CUDA or ROCm library to take a stream from");
  void* stream = nullptr;
  // torch's macro for this check has another name on 2.11 than on later versions
  if (get_stream(tensor.get_device_index(), &stream) != AOTI_TORCH_SUCCESS) {
    throw std::runtime_error("torch gave no current stream for the device of the tensor");
  }
  return stream;
}

}  // namespace ngram_ple::bindings
