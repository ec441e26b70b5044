// Which library of torch tells the stream: stand-ins for libtorch_cuda.so and libtorch_hip.so, loaded one
// after the other. Built once as in a CUDA build and once as in a HIP build.
#include "bindings/stream_symbol.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace ngram_ple::bindings {
namespace {

constexpr bool kHip = std::string_view(kTorchGpuLibrary) == "libtorch_hip.so";

std::string path_of(const char* library) { return std::string(FAKE_TORCH_FOLDER "/") + library; }

void load(const char* library) {
  ASSERT_NE(dlopen(path_of(library).c_str(), RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
}

// In one test: nothing that was loaded is unloaded.
TEST(StreamSymbol, IsTheOneOfThisBuildsVendor) {
  EXPECT_EQ(find_get_stream(), nullptr);
  try {
    require_get_stream();
    ADD_FAILURE();
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find(kHip ? "built for ROCm" : "built for CUDA"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find(kTorchGpuLibrary), std::string::npos);
  }
  load(kHip ? "libtorch_cuda.so" : "libtorch_hip.so");  // the other one: not ours to ask
  EXPECT_EQ(find_get_stream(), nullptr);
  load(kTorchGpuLibrary);
  const GetStream get_stream = require_get_stream();
  ASSERT_NE(get_stream, nullptr);
  void* stream = nullptr;
  EXPECT_EQ(get_stream(5, &stream), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(stream), kHip ? 0x4105u : 0xC105u);
}

}  // namespace
}  // namespace ngram_ple::bindings
