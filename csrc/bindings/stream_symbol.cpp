#include "bindings/stream_symbol.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace ngram_ple::bindings {

GetStream find_get_stream() {
  void* handle = dlopen(kTorchGpuLibrary, RTLD_NOLOAD | RTLD_LAZY);
  if (handle == nullptr) return nullptr;
  void* symbol = dlsym(handle, "aoti_torch_get_current_cuda_stream");  // ROCm torch's name for it too
  dlclose(handle);  // gives back RTLD_NOLOAD's reference only
  return reinterpret_cast<GetStream>(symbol);
}

GetStream require_get_stream() {
  const GetStream found = find_get_stream();
  if (found != nullptr) return found;
  const std::string vendor = kTorchGpuName;
  throw std::runtime_error("this ngram_ple was built for " + vendor + ", and this torch has no stream of " +
                           kTorchGpuLibrary + ": install ngram_ple again beside this torch");
}

}  // namespace ngram_ple::bindings
