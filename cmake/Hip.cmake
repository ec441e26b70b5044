# The HIP backend: the same .cu files through hipcc, as custom commands (CMake's own HIP language wants a
# complete ROCm installation, distributions ship parts of it). -DNGRAM_PLE_HIPCC may name a plain clang++.
set(NGRAM_PLE_HIP_ARCHS "" CACHE STRING
  "AMD GPU architectures of the HIP build (empty: those of gfx90a, gfx942 and gfx1100 that the compiler knows)")
set(NGRAM_PLE_HIP_FLAGS "" CACHE STRING "Further options of the HIP compiler, separated by spaces")
# ROCm torch brings HIP's library along: the very same one, or a process would hold two.
find_library(NGRAM_PLE_AMDHIP64 amdhip64
  HINTS "${NGRAM_PLE_TORCH_LIB}" "$ENV{ROCM_PATH}/lib" PATHS /opt/rocm/lib)

set(NGRAM_PLE_HIP_OPTIONS -std=c++17 -O3 -DNDEBUG -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra)
if(NGRAM_PLE_WERROR)
  list(APPEND NGRAM_PLE_HIP_OPTIONS -Werror)
endif()
if("${NGRAM_PLE_HIP_FLAGS} $ENV{HIPCC_COMPILE_FLAGS_APPEND}" MATCHES "wavefrontsize64")
  message(FATAL_ERROR "The HIP build needs each GPU's own wave size, which the host asks of the driver: "
                      "take -mwavefrontsize64 out of the compiler's options.")
endif()
separate_arguments(flags NATIVE_COMMAND "${NGRAM_PLE_HIP_FLAGS}")
list(APPEND NGRAM_PLE_HIP_OPTIONS ${flags})
# With an nvcc on PATH hipcc would take NVIDIA for the target.
set(NGRAM_PLE_HIP_COMMAND "${CMAKE_COMMAND}" -E env HIP_PLATFORM=amd "${NGRAM_PLE_HIPCC}" ${NGRAM_PLE_HIP_OPTIONS})

if(NOT NGRAM_PLE_HIP_ARCHS)
  set(probe "${PROJECT_BINARY_DIR}/hip_probe/probe.cu")
  file(WRITE "${probe}" "#include <hip/hip_runtime.h>\n__global__ void probe() {}\n")
  set(known "")
  foreach(arch gfx90a gfx942 gfx1100)
    execute_process(
      COMMAND ${NGRAM_PLE_HIP_COMMAND} --offload-arch=${arch} --cuda-device-only -x hip -c "${probe}" -o "${probe}.o"
      RESULT_VARIABLE failed OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(NOT failed)
      list(APPEND known ${arch})
    endif()
  endforeach()
  if(NOT known)
    message(FATAL_ERROR "${NGRAM_PLE_HIPCC} compiles for none of gfx90a, gfx942 and gfx1100:\n${said}")
  endif()
  set(NGRAM_PLE_HIP_ARCHS "${known}" CACHE STRING "" FORCE)
endif()
message(STATUS "AMD GPU architectures: ${NGRAM_PLE_HIP_ARCHS}")
list(TRANSFORM NGRAM_PLE_HIP_ARCHS PREPEND "--offload-arch=" OUTPUT_VARIABLE NGRAM_PLE_OFFLOAD_OPTIONS)

# ngram_ple_gpu_objects(variable sources... [INCLUDE folders...]): objects of sources beside the caller's list file.
function(ngram_ple_gpu_objects variable)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "INCLUDE")
  list(TRANSFORM arg_INCLUDE PREPEND "-I")
  set(objects "")
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/hip/${source}.o")
    cmake_path(GET object PARENT_PATH folder)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${NGRAM_PLE_HIP_COMMAND} ${NGRAM_PLE_OFFLOAD_OPTIONS} "-I${PROJECT_SOURCE_DIR}/csrc" ${arg_INCLUDE}
              -MD -MF "${object}.d" -x hip -c "${CMAKE_CURRENT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${source}"
      DEPFILE "${object}.d"
      COMMENT "Building HIP object ${source}"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  set(${variable} ${objects} PARENT_SCOPE)
endfunction()

function(ngram_ple_add_gpu_library name)
  ngram_ple_gpu_objects(objects ${ARGN})
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
  if(NGRAM_PLE_AMDHIP64)
    target_link_libraries(${name} PUBLIC "${NGRAM_PLE_AMDHIP64}")
  elseif(NGRAM_PLE_BINDINGS OR NGRAM_PLE_TESTS)
    message(FATAL_ERROR "NGRAM_PLE_BACKEND=hip needs HIP's library amdhip64, which was not found: set ROCM_PATH.")
  endif()
endfunction()
