# ingot_library(NAME SOURCES a.cpp… TESTS a_test.cpp… DEPENDS base tensor … LINK other::targets… TEST_LINK targets… EMULATED filter…
#               [TORCH] [TEST_TORCH])
#
# One folder of src/ = one library. A folder sees its own headers and those of the folders it DEPENDS on, nothing else:
# each library exports an include root that holds a single link named after the folder, so an include of a folder that is
# not on the link line does not compile. Tests of a folder become one program, <name>_test, and one ctest entry per test
# (TestsOfProgram.cmake); those that EMULATED names (patterns of gtest) run once more on the emulated device, in one entry.

function(ingot_library name)
  cmake_parse_arguments(arg "TORCH;TEST_TORCH" "" "SOURCES;TESTS;DEPENDS;LINK;TEST_LINK;EMULATED" ${ARGN})
  set(target ingot_${name})
  set(root "${PROJECT_BINARY_DIR}/include/${name}")
  file(MAKE_DIRECTORY "${root}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}" "${root}/${name}" SYMBOLIC)

  add_library(${target} STATIC ${arg_SOURCES})
  target_include_directories(${target} PUBLIC "${root}")
  list(TRANSFORM arg_DEPENDS PREPEND ingot_)
  target_link_libraries(${target} PUBLIC ${arg_DEPENDS} ${arg_LINK} PRIVATE ingot_warnings)
  set(kind "")
  if(arg_TORCH)
    target_link_libraries(${target} PUBLIC ingot::torch)
    set(kind TORCH)
  endif()
  ingot_precompile(${target} ${kind})

  if(arg_TESTS AND INGOT_TESTS)
    add_executable(${name}_test ${arg_TESTS})
    target_link_libraries(${name}_test PRIVATE ${target} ingot_warnings GTest::gtest GTest::gmock GTest::gtest_main ${arg_TEST_LINK})
    ingot_place(${name}_test)
    if(arg_TEST_TORCH)
      set(kind TORCH)
    endif()
    ingot_precompile(${name}_test ${kind} TEST)
    set(entries "${CMAKE_CURRENT_BINARY_DIR}/${name}_test.cmake")
    file(WRITE "${entries}" "set(program \"${CMAKE_CURRENT_BINARY_DIR}/${name}_test\")\nset(prefix ${name})\n"
      "set(source_dir \"${PROJECT_SOURCE_DIR}\")\nset(environment \"INGOT_BINARY=${PROJECT_BINARY_DIR}/ingot\")\n"
      "include(\"${PROJECT_SOURCE_DIR}/cmake/TestsOfProgram.cmake\")\n")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${entries}")
    if(arg_EMULATED)
      list(JOIN arg_EMULATED ":" filter)
      add_test(NAME ${name}/on_the_emulated_device COMMAND ${name}_test "--gtest_filter=${filter}" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
      set_tests_properties(${name}/on_the_emulated_device PROPERTIES TIMEOUT 600 ENVIRONMENT "INGOT_TEST_DEVICE=emulated")
    endif()
  endif()
endfunction()

# Sources of this folder's operators: every operators/NAME.cpp, which defines NAME_operators(), and a file that defines `function`, the list
# of all. Adding a file adds it to the list.
function(ingot_operators sources function)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" operators/*.cpp)
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR FILENAME folder)
  set(lists "")
  set(declarations "")
  foreach(file ${files})
    cmake_path(GET file STEM name)
    list(APPEND lists ${name}_operators)
    string(APPEND declarations "std::vector<kernels::Operator> ${name}_operators();\n")
  endforeach()
  list(JOIN lists ", " lists)
  configure_file("${PROJECT_SOURCE_DIR}/cmake/operator_list.cpp.in" "${CMAKE_CURRENT_BINARY_DIR}/operator_list.cpp" @ONLY)
  set(${sources} ${files} "${CMAKE_CURRENT_BINARY_DIR}/operator_list.cpp" PARENT_SCOPE)
endfunction()

# The torch headers cost 17 s a file without this and 1.6 s with it. What a precompiled header has the templates of costs every file that
# uses it, even an empty one: all of ATen would make that 2.6 s, with JSON and autograd, which few of torch's files need, it was 6 s.
function(ingot_precompile target)
  if(NOT INGOT_PCH)
    return()
  endif()
  cmake_parse_arguments(arg "TORCH;TEST;CLI" "" "" ${ARGN})
  set(headers <fmt/format.h> <algorithm> <chrono> <filesystem> <functional> <map> <memory> <optional> <string> <vector>)
  set(pch ingot_plain)
  set(options "")
  if(arg_TORCH)
    set(pch ingot_torch)
    list(PREPEND headers "${PROJECT_SOURCE_DIR}/src/device/aten.h" <ATen/Parallel.h>)
  else()
    list(APPEND headers <nlohmann/json.hpp>)
  endif()
  if(arg_CLI)
    set(pch ingot_cli)
    list(APPEND headers <CLI/CLI.hpp>)
  endif()
  if(arg_TEST)
    # Each test runs once after it was compiled: less optimisation and no line numbers make the two together faster.
    string(APPEND pch _test)
    list(APPEND headers <gtest/gtest.h> <gmock/gmock.h>)
    if(NOT INGOT_SANITIZE)  # whose reports name lines
      set(options "$<$<CONFIG:RelWithDebInfo>:-O1;-g0>")
    endif()
  endif()
  string(APPEND pch _pch)
  if(NOT TARGET ${pch})
    file(WRITE "${PROJECT_BINARY_DIR}/${pch}.cpp" "")
    add_library(${pch} OBJECT "${PROJECT_BINARY_DIR}/${pch}.cpp")
    target_link_libraries(${pch} PRIVATE ingot::common $<$<BOOL:${arg_TORCH}>:ingot::torch> $<$<BOOL:${arg_CLI}>:CLI11::CLI11> $<$<BOOL:${arg_TEST}>:GTest::gtest> ingot_warnings)
    target_compile_options(${pch} PRIVATE ${options})
    target_precompile_headers(${pch} PRIVATE ${headers})
  endif()
  # A precompiled header serves only code compiled with the same flags: programs too take -fPIC, not CMake's -fPIE.
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL "EXECUTABLE")
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  target_compile_options(${target} PRIVATE ${options})
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# Where programs look for shared libraries: beside themselves first, then in the torch that they were built with.
# RUNPATH rather than RPATH, so that LD_LIBRARY_PATH can point at another torch.
function(ingot_place target)
  set_target_properties(${target} PROPERTIES BUILD_WITH_INSTALL_RPATH ON
    INSTALL_RPATH "$ORIGIN;$ORIGIN/lib;${INGOT_TORCH_DIR}/lib;${INGOT_NVIDIA_DIR}/lib")
  target_link_options(${target} PRIVATE -Wl,--enable-new-dtags)
endfunction()
