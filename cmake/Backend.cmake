# Chooses the GPU backend: sets NGRAM_PLE_GPU to "", "cuda" or "hip" and defines
# ngram_ple_add_gpu_library(name sources...).
set(backends auto cpu cuda hip)
if(NOT NGRAM_PLE_BACKEND IN_LIST backends)
  message(FATAL_ERROR "NGRAM_PLE_BACKEND must be auto, cpu, cuda or hip, got '${NGRAM_PLE_BACKEND}'.")
endif()

set(NGRAM_PLE_TORCH_GPU "" CACHE STRING "GPU backend of the torch at hand, which auto prefers: cuda, hip or empty")

set(NGRAM_PLE_GPU "")
if(NOT NGRAM_PLE_BACKEND STREQUAL "cpu")
  find_program(NGRAM_PLE_NVCC nvcc
    HINTS "$ENV{CUDA_HOME}/bin" "$ENV{CUDA_PATH}/bin" PATHS /usr/local/cuda/bin)
  find_program(NGRAM_PLE_HIPCC NAMES hipcc amdclang++ HINTS "$ENV{ROCM_PATH}/bin" PATHS /opt/rocm/bin)
endif()
if(NGRAM_PLE_BACKEND STREQUAL "auto")
  if(NGRAM_PLE_TORCH_GPU STREQUAL "hip" AND NGRAM_PLE_HIPCC)
    set(NGRAM_PLE_GPU hip)
  elseif(NGRAM_PLE_NVCC)
    set(NGRAM_PLE_GPU cuda)
  elseif(NGRAM_PLE_HIPCC)
    set(NGRAM_PLE_GPU hip)
  endif()
elseif(NOT NGRAM_PLE_BACKEND STREQUAL "cpu")
  set(NGRAM_PLE_GPU ${NGRAM_PLE_BACKEND})
endif()

if(NGRAM_PLE_GPU)
  message(STATUS "ngram_ple backends: cpu ${NGRAM_PLE_GPU}")
else()
  message(STATUS "ngram_ple backends: cpu")
endif()

if(NGRAM_PLE_GPU STREQUAL "cuda")
  if(NOT NGRAM_PLE_NVCC)
    message(FATAL_ERROR "NGRAM_PLE_BACKEND=cuda needs nvcc, which was not found: put the CUDA toolkit's "
                        "bin folder on PATH or set CUDA_HOME.")
  endif()
  include(Cuda)
elseif(NGRAM_PLE_GPU STREQUAL "hip")
  if(NOT NGRAM_PLE_HIPCC)
    message(FATAL_ERROR "NGRAM_PLE_BACKEND=hip needs hipcc, which was not found: put ROCm's bin folder on "
                        "PATH or set ROCM_PATH.")
  endif()
  include(Hip)
endif()
