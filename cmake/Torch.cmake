# Imported targets for libtorch as it lies in PyTorch's own wheel (or in a user's own torch, a ROCm one for instance).
#   ingot::torch       headers and the CPU libraries; those for GPUs are loaded at run time (src/gpu)
# find_package(Torch) is not used: it insists on a CUDA toolkit even for a CPU program.
set(INGOT_TORCH_DIR "${PROJECT_SOURCE_DIR}/.deps/torch/torch" CACHE PATH "folder of the torch package: include/ and lib/")
if(NOT EXISTS "${INGOT_TORCH_DIR}/include/ATen/ATen.h")
  message(FATAL_ERROR "no libtorch in INGOT_TORCH_DIR=${INGOT_TORCH_DIR}\n"
                      "Run ./scripts/build, which fetches it, or pass -DINGOT_TORCH_DIR=<site-packages>/torch")
endif()
set(INGOT_NVIDIA_DIR "${INGOT_TORCH_DIR}/../nvidia/cu13" CACHE PATH "folder of NVIDIA's runtime wheels: include/ and lib/")

# The wheel has headers of another fmt among its own, without the code that belongs to them: the program's fmt must come first.
find_path(INGOT_FMT_INCLUDE fmt/format.h REQUIRED)
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include/one_fmt")
file(CREATE_LINK "${INGOT_FMT_INCLUDE}/fmt" "${PROJECT_BINARY_DIR}/include/one_fmt/fmt" SYMBOLIC)

# An operator's header has its wrapper's declaration, and with it guards of devices and the tracer, which no wrapper needs: 2 s of a compiler's
# time, and 1.3 s of each file's even when they are precompiled. Those of device/aten.h are read without them.
set(aten_list "${PROJECT_SOURCE_DIR}/src/device/aten.h")
set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${aten_list}")
file(STRINGS "${aten_list}" aten_headers REGEX "^#include <ATen/ops/")
foreach(line IN LISTS aten_headers)
  string(REGEX REPLACE "^#include <(.*)>$" "\\1" header "${line}")
  file(READ "${INGOT_TORCH_DIR}/include/${header}" text)
  string(REGEX REPLACE "#include <ATen/(DeviceGuard|TracerMode)\\.h>\n" "" text "${text}")
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/include/lean_aten/${header}" CONTENT "${text}" @ONLY)
endforeach()

add_library(ingot_torch INTERFACE)
target_include_directories(ingot_torch SYSTEM INTERFACE
  "${PROJECT_BINARY_DIR}/include/one_fmt" "${PROJECT_BINARY_DIR}/include/lean_aten" "${INGOT_TORCH_DIR}/include" "${INGOT_TORCH_DIR}/include/torch/csrc/api/include")
# The wheel's libtorch_cpu asks for CUDA's run time and profiler libraries by name even on a machine without a GPU.
target_link_options(ingot_torch INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined
  "-Wl,-rpath-link,${INGOT_TORCH_DIR}/lib" "-Wl,-rpath-link,${INGOT_NVIDIA_DIR}/lib")
target_link_libraries(ingot_torch INTERFACE "${INGOT_TORCH_DIR}/lib/libtorch_cpu.so" "${INGOT_TORCH_DIR}/lib/libc10.so")
# Only the operators' headers that a file asks for (device/aten.h).
target_compile_definitions(ingot_torch INTERFACE AT_PER_OPERATOR_HEADERS)
# at::parallel_for is a template over OpenMP: without the flag it runs on one thread. The run time must be torch's own copy.
target_compile_options(ingot_torch INTERFACE -fopenmp)
if(EXISTS "${INGOT_TORCH_DIR}/lib/libgomp.so.1")
  target_link_libraries(ingot_torch INTERFACE "${INGOT_TORCH_DIR}/lib/libgomp.so.1")
else()
  target_link_options(ingot_torch INTERFACE -fopenmp)
endif()
add_library(ingot::torch ALIAS ingot_torch)
