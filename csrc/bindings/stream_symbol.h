// torch's function that tells a GPU's current stream. No torch headers: a CPU torch has no such symbol, so it
// is looked for in the library that a CUDA or ROCm torch has loaded.
#pragma once

#include <cstdint>

namespace ngram_ple::bindings {

// Returns 0 where it succeeds.
using GetStream = int32_t (*)(int32_t device_index, void** stream);

// The library of the torch that this build's kernels belong to: a CUDA stream is nothing to HIP's runtime,
// nor the other way around.
#if defined(NGRAM_PLE_GPU_HIP)
inline constexpr const char* kTorchGpuLibrary = "libtorch_hip.so";
inline constexpr const char* kTorchGpuName = "ROCm";
#else
inline constexpr const char* kTorchGpuLibrary = "libtorch_cuda.so";
inline constexpr const char* kTorchGpuName = "CUDA";
#endif

// Null where the process has not loaded that library.
GetStream find_get_stream();

// find_get_stream(), or std::runtime_error that says what was built and what is missing.
GetStream require_get_stream();

}  // namespace ngram_ple::bindings
