# The CUDA backend: nvcc, a static CUDA runtime, machine code for every architecture named and PTX for the
# newest, so that later GPUs run too.
set(CMAKE_CUDA_COMPILER "${NGRAM_PLE_NVCC}")
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

set(archs ${NGRAM_PLE_CUDA_ARCHS})
list(SORT archs COMPARE NATURAL)
list(POP_BACK archs newest)
list(TRANSFORM archs APPEND "-real")
set(CMAKE_CUDA_ARCHITECTURES ${archs} ${newest})
enable_language(CUDA)

function(ngram_ple_add_gpu_library name)
  add_library(${name} STATIC ${ARGN})
  ngram_ple_compile_options(${name})
endfunction()
