# One set of compile options for every target of this project.
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# torch is loaded before _ops.so and found by its soname: no path of the build machine in the binary.
set(CMAKE_SKIP_RPATH ON)

# -ffp-contract=off: decoded values are specified to the bit, a fused multiply-add would round once less.
set(NGRAM_PLE_HOST_OPTIONS -ffp-contract=off -Wall -Wextra -Wshadow)
set(NGRAM_PLE_CUDA_OPTIONS --fmad=false -Xcompiler=-ffp-contract=off,-Wall,-Wextra)
if(NGRAM_PLE_WERROR)
  list(APPEND NGRAM_PLE_HOST_OPTIONS -Werror)
  list(APPEND NGRAM_PLE_CUDA_OPTIONS -Werror=all-warnings)
endif()
if(NGRAM_PLE_SANITIZE)
  set(sanitize -O1 -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  list(APPEND NGRAM_PLE_HOST_OPTIONS ${sanitize})
  add_link_options(-fsanitize=address,undefined)
endif()

# ngram_ple_compile_options(target): include path and options; a header-only target hands them on.
function(ngram_ple_compile_options target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "INTERFACE_LIBRARY")
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}/csrc")
    return()
  endif()
  target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CXX>:${NGRAM_PLE_HOST_OPTIONS}>"
    "$<$<COMPILE_LANGUAGE:CUDA>:${NGRAM_PLE_CUDA_OPTIONS}>")
endfunction()
