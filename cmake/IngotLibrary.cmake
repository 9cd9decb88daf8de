# ingot_library(NAME SOURCES a.cpp… TESTS a_test.cpp… DEPENDS base tensor … LINK other::targets… [TORCH])
#
# One folder of src/ = one library. A folder sees its own headers and those of the folders it DEPENDS on, nothing else:
# each library exports an include root that holds a single link named after the folder, so an include of a folder that is
# not on the link line does not compile. Tests of a folder become one program, <name>_test, and one ctest entry per case.
include(GoogleTest)

function(ingot_library name)
  cmake_parse_arguments(arg "TORCH" "" "SOURCES;TESTS;DEPENDS;LINK;TEST_LINK" ${ARGN})
  set(target ingot_${name})
  set(root "${PROJECT_BINARY_DIR}/include/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${root}/${name}" SYMBOLIC)

  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${root}")
  list(TRANSFORM arg_DEPENDS PREPEND ingot_)
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} ${arg_LINK} PRIVATE ingot_warnings)
  if(arg_TORCH)
    target_link_libraries(${target} PUBLIC ingot::torch)
    ingot_precompile_torch(${target})
  endif()

  if(arg_TESTS AND INGOT_TESTS)
    add_executable(${name}_test ${arg_TESTS})
    target_link_libraries(${name}_test PRIVATE ${target} ingot_warnings GTest::gtest GTest::gmock GTest::gtest_main ${arg_TEST_LINK})
    ingot_place(${name}_test)
    if(arg_TORCH)
      ingot_precompile_torch(${name}_test)
    endif()
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}/" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
      WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}" PROPERTIES TIMEOUT 600 ENVIRONMENT "INGOT_BINARY=${PROJECT_BINARY_DIR}/ingot")
  endif()
endfunction()

# The torch headers cost 14 s a file without this and 4 s with it.
function(ingot_precompile_torch target)
  if(NOT INGOT_PCH)
    return()
  endif()
  if(NOT TARGET ingot_torch_pch)
    file(WRITE "${PROJECT_BINARY_DIR}/torch_pch.cpp" "")
    add_library(ingot_torch_pch OBJECT "${PROJECT_BINARY_DIR}/torch_pch.cpp")
    target_link_libraries(ingot_torch_pch PRIVATE ingot::torch ingot_warnings)
    target_precompile_headers(ingot_torch_pch PRIVATE <ATen/ATen.h> <torch/csrc/autograd/custom_function.h>
      <torch/csrc/autograd/autograd.h> <ATen/Parallel.h> <nlohmann/json.hpp> <map> <string> <vector> <functional>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ingot_torch_pch)
endfunction()

# Where programs look for shared libraries: beside themselves first, then in the torch that they were built with.
# RUNPATH rather than RPATH, so that LD_LIBRARY_PATH can point at another torch.
function(ingot_place target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN;$ORIGIN/lib;${INGOT_TORCH_DIR}/lib;${INGOT_NVIDIA_DIR}/lib")
  target_link_options(${target} PRIVATE -Wl,--enable-new-dtags)
endfunction()
