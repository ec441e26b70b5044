# The HIP backend: the same .cu files through hipcc, as custom commands (CMake's own HIP language wants a
# complete ROCm installation, distributions ship parts of it).
set(NGRAM_PLE_HIP_ARCHS "gfx90a" CACHE STRING "AMD GPU architectures of the HIP build")
find_library(NGRAM_PLE_AMDHIP64 amdhip64 HINTS "$ENV{ROCM_PATH}/lib" PATHS /opt/rocm/lib)

set(NGRAM_PLE_HIP_OPTIONS -std=c++17 -O3 -DNDEBUG -fPIC -fvisibility=hidden -ffp-contract=off -Wall -Wextra)
if(NGRAM_PLE_WERROR)
  list(APPEND NGRAM_PLE_HIP_OPTIONS -Werror)
endif()
list(TRANSFORM NGRAM_PLE_HIP_ARCHS PREPEND "--offload-arch=" OUTPUT_VARIABLE NGRAM_PLE_OFFLOAD_OPTIONS)

function(ngram_ple_add_gpu_library name)
  set(objects "")
  foreach(source IN LISTS ARGN)
    set(object "${CMAKE_CURRENT_BINARY_DIR}/hip/${source}.o")
    cmake_path(GET object PARENT_PATH folder)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(
      OUTPUT "${object}"
      # with an nvcc on PATH hipcc would take NVIDIA for the target
      COMMAND "${CMAKE_COMMAND}" -E env HIP_PLATFORM=amd "${NGRAM_PLE_HIPCC}" ${NGRAM_PLE_HIP_OPTIONS}
              ${NGRAM_PLE_OFFLOAD_OPTIONS} "-I${PROJECT_SOURCE_DIR}/csrc" -MD -MF "${object}.d"
              -x hip -c "${PROJECT_SOURCE_DIR}/${source}" -o "${object}"
      DEPENDS "${PROJECT_SOURCE_DIR}/${source}"
      DEPFILE "${object}.d"
      COMMENT "Building HIP object ${source}"
      VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  add_library(${name} STATIC ${objects})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
  if(NGRAM_PLE_AMDHIP64)
    target_link_libraries(${name} PUBLIC "${NGRAM_PLE_AMDHIP64}")
  endif()
endfunction()
