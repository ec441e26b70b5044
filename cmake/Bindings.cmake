# What Python loads: `_ops.so` (torch operators, no Python symbol) and `_core` (pybind11, no torch), both
# installed into ngram_ple/ with the build's description.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

# --- torch: headers and libtorch_cpu.so, nothing of its CMake package --------------------------------
set(NGRAM_PLE_TORCH_INCLUDE "" CACHE PATH "torch's include folder (empty: asked of Python)")
set(NGRAM_PLE_TORCH_LIB "" CACHE PATH "Folder of libtorch_cpu.so (empty: asked of Python)")
set(NGRAM_PLE_TORCH_VERSION "" CACHE STRING "torch's version (empty: asked of Python)")
if(NOT NGRAM_PLE_TORCH_INCLUDE OR NOT NGRAM_PLE_TORCH_LIB)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_torch.py"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  if(found STREQUAL "null")
    message(FATAL_ERROR "ngram_ple needs torch >= 2.11 in the environment of ${Python_EXECUTABLE}.")
  endif()
  string(JSON NGRAM_PLE_TORCH_INCLUDE GET "${found}" include)
  string(JSON NGRAM_PLE_TORCH_LIB GET "${found}" lib)
  string(JSON NGRAM_PLE_TORCH_VERSION GET "${found}" version)
endif()
add_library(ngram_ple_torch INTERFACE)
target_include_directories(ngram_ple_torch SYSTEM INTERFACE "${NGRAM_PLE_TORCH_INCLUDE}")
target_link_libraries(ngram_ple_torch INTERFACE "${NGRAM_PLE_TORCH_LIB}/libtorch_cpu.so")
# Only the stable ABI of torch 2.11: one build runs on that and every later torch.
target_compile_definitions(ngram_ple_torch INTERFACE TORCH_TARGET_VERSION=0x020b000000000000)

# Some toolchains ship a static libstdc++ alone, which beside the process's shared one is a second set of locales and
# exception types; the system's shared one, named first, then serves.
execute_process(
  COMMAND "${CMAKE_CXX_COMPILER}" -print-file-name=libstdc++.so
  OUTPUT_VARIABLE shared OUTPUT_STRIP_TRAILING_WHITESPACE)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT IS_ABSOLUTE "${shared}")
  find_library(NGRAM_PLE_LIBSTDCXX NAMES libstdc++.so.6 REQUIRED)
endif()
function(ngram_ple_share_libstdcxx target)
  if(NGRAM_PLE_LIBSTDCXX)
    target_link_libraries(${target} PRIVATE "${NGRAM_PLE_LIBSTDCXX}")
  endif()
endfunction()

# --- _ops.so ----------------------------------------------------------------------------------------
add_library(ngram_ple_ops MODULE
  csrc/bindings/arguments.cpp
  csrc/bindings/decode.cpp
  csrc/bindings/device.cpp
  csrc/bindings/embed.cpp
  csrc/bindings/encode.cpp
  csrc/bindings/hash_arguments.cpp
  csrc/bindings/lookup.cpp
  csrc/bindings/ngram_ids.cpp
  csrc/bindings/peers.cpp
  csrc/bindings/pinned_reader.cpp
  csrc/bindings/schemas.cpp
  csrc/bindings/stream_symbol.cpp
  csrc/bindings/table_arguments.cpp)
# C++20 as torch asks of code that includes its headers; everything below stays C++17.
set_target_properties(ngram_ple_ops PROPERTIES PREFIX "" OUTPUT_NAME _ops SUFFIX ".so" CXX_STANDARD 20)
ngram_ple_compile_options(ngram_ple_ops)
target_link_libraries(ngram_ple_ops PRIVATE ngram_ple_cpu ngram_ple_torch ${CMAKE_DL_LIBS})
if(TARGET ngram_ple_gpu)
  target_link_libraries(ngram_ple_ops PRIVATE ngram_ple_gpu)
endif()
target_link_options(ngram_ple_ops PRIVATE LINKER:--no-undefined)  # a missing source shows here, not at import
# Errors cross into torch as C++ exceptions, so both must share one libstdc++.
ngram_ple_share_libstdcxx(ngram_ple_ops)
install(TARGETS ngram_ple_ops LIBRARY DESTINATION ngram_ple)

# --- _core ------------------------------------------------------------------------------------------
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 CONFIG REQUIRED)
pybind11_add_module(ngram_ple_core MODULE
  csrc/bindings/core_module.cpp
  csrc/bindings/encode_blocks.cpp
  csrc/bindings/pinned_region.cpp)
set_target_properties(ngram_ple_core PROPERTIES OUTPUT_NAME _core)
ngram_ple_compile_options(ngram_ple_core)
ngram_ple_share_libstdcxx(ngram_ple_core)
target_link_libraries(ngram_ple_core PRIVATE ngram_ple_cpu)
if(TARGET ngram_ple_host_memory)
  target_link_libraries(ngram_ple_core PRIVATE ngram_ple_host_memory)
endif()
if(TARGET ngram_ple_gpu)
  target_link_libraries(ngram_ple_core PRIVATE ngram_ple_gpu)
endif()
install(TARGETS ngram_ple_core LIBRARY DESTINATION ngram_ple)

# --- the facts that ngram_ple.build_info() tells ----------------------------------------------------
if(NGRAM_PLE_GPU STREQUAL "cuda")
  set(archs ${NGRAM_PLE_CUDA_ARCHS})
elseif(NGRAM_PLE_GPU STREQUAL "hip")
  set(archs ${NGRAM_PLE_HIP_ARCHS})
else()
  set(archs "")
endif()
list(TRANSFORM archs REPLACE "(.+)" "\"\\1\"")
list(JOIN archs ", " archs)
set(backends "\"cpu\"")
if(NGRAM_PLE_GPU)
  string(APPEND backends ", \"${NGRAM_PLE_GPU}\"")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/build_info.json.in" "${PROJECT_BINARY_DIR}/_build_info.json" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/_build_info.json" DESTINATION ngram_ple)
