// Registers a function for the CPU and, in a build with GPU kernels, for the GPU (ROCm torch uses CUDA's key
// too).
#pragma once

#include <torch/csrc/stable/library.h>

#ifdef NGRAM_PLE_GPU
#define NGP_REGISTER_GPU(name, function) \
  STABLE_TORCH_LIBRARY_IMPL(ngram_ple, CUDA, m) { m.impl(name, TORCH_BOX(&function)); }
#else
#define NGP_REGISTER_GPU(name, function)
#endif

#define NGP_REGISTER(name, function)                                                   \
  STABLE_TORCH_LIBRARY_IMPL(ngram_ple, CPU, m) { m.impl(name, TORCH_BOX(&function)); } \
  NGP_REGISTER_GPU(name, function)
