#include "gpu/library_gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

namespace ingot::kernels::gpu {
namespace {

// cuBLASLt's matrices lie by column, so it is asked for out^T [n, m] = b^T [n, k] a^T [k, m]: a matrix by row is its transpose by column.

cudaDataType_t type_of(GemmNumbers numbers) { return numbers == GemmNumbers::fp32 ? CUDA_R_32F : CUDA_R_16BF; }

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) throw status;
}

template <class Handle, cublasStatus_t (*Destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle) Destroy(handle);
  }
};

struct Layout : Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> {
  Layout(GemmNumbers numbers, int64_t rows, int64_t columns, int64_t stride) {
    check(cublasLtMatrixLayoutCreate(&handle, type_of(numbers), static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride));
  }
};

// Of the transpose of `matrix` [rows, columns], as it lies in memory.
Layout transposed(const GemmMatrix& matrix, GemmNumbers numbers, int64_t rows, int64_t columns) {
  return matrix.by_column ? Layout(numbers, rows, columns, matrix.stride) : Layout(numbers, columns, rows, matrix.stride);
}

struct Description : Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> {
  explicit Description(const LibraryGemm& gemm) {
    check(cublasLtMatmulDescCreate(&handle, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, gemm.b.by_column ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, gemm.a.by_column ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (!gemm.bias) return;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, gemm.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(gemm.sums));
  }
  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check(cublasLtMatmulDescSetAttribute(handle, attribute, &value, sizeof(value)));
  }
};

struct Call {
  Description description;
  Layout left, right, out;  // of the transposed GEMM

  explicit Call(const LibraryGemm& gemm)
      : description(gemm),
        left(transposed(gemm.b, gemm.numbers, gemm.k, gemm.n)),
        right(transposed(gemm.a, gemm.numbers, gemm.m, gemm.k)),
        out(gemm.sums, gemm.n, gemm.m, gemm.out_stride) {}
};

struct Preference : Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> {
  Preference() {
    check(cublasLtMatmulPreferenceCreate(&handle));
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostGemmWorkspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    for (const auto operand : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(operand, uint32_t{16});
  }
  template <class Value>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
    check(cublasLtMatmulPreferenceSetAttribute(handle, attribute, &value, sizeof(value)));
  }
};

// Of the device that is current; kept until the process ends.
cublasLtHandle_t library_of(int device) {
  static std::mutex mutex;
  static std::map<int, cublasLtHandle_t> libraries;
  const std::lock_guard lock(mutex);
  auto& library = libraries[device];
  if (!library) check(cublasLtCreate(&library));
  return library;
}

cublasLtMatmulAlgo_t algorithm_of(const GemmAlgorithm& algorithm) {
  cublasLtMatmulAlgo_t taken{};
  std::copy(algorithm.words.begin(), algorithm.words.end(), std::begin(taken.data));
  return taken;
}

}  // namespace

std::string gemm_library() { return "cuBLASLt " + std::to_string(cublasLtGetVersion()); }

int gemm_algorithms(const LibraryGemm& gemm, int device, GemmAlgorithm* found, int most) {
  try {
    const Call call(gemm);
    const Preference preference;
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(library_of(device), call.description.handle, call.left.handle, call.right.handle,
                                                       call.out.handle, call.out.handle, preference.handle, most, results.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return 0;
    check(status);
    int good = 0;
    for (int i = 0; i < count; ++i) {
      const auto& result = results[static_cast<size_t>(i)];
      if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kMostGemmWorkspace) continue;
      found[good] = {{}, result.workspaceSize};
      std::copy(std::begin(result.algo.data), std::end(result.algo.data), found[good++].words.begin());
    }
    return good;
  } catch (const cublasStatus_t& error) {
    return -static_cast<int>(error);
  }
}

int is_able(const LibraryGemm& gemm, const GemmAlgorithm& algorithm, int device) {
  try {
    const Call call(gemm);
    const auto taken = algorithm_of(algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    check(cublasLtMatmulAlgoCheck(library_of(device), call.description.handle, call.left.handle, call.right.handle, call.out.handle,
                                  call.out.handle, &taken, &result));
    return result.workspaceSize <= algorithm.workspace_bytes ? 1 : 0;
  } catch (const cublasStatus_t&) {
    return 0;
  }
}

int run_gemm(const LibraryGemm& gemm, const GemmAlgorithm& algorithm, int device, void* workspace, void* stream) {
  try {
    const Call call(gemm);
    const auto taken = algorithm_of(algorithm);
    const float alpha = 1, beta = gemm.adds ? 1.0F : 0.0F;
    check(cublasLtMatmul(library_of(device), call.description.handle, &alpha, gemm.b.data, call.left.handle, gemm.a.data, call.right.handle,
                         &beta, gemm.out, call.out.handle, gemm.out, call.out.handle, &taken, workspace, algorithm.workspace_bytes,
                         static_cast<cudaStream_t>(stream)));
    return 0;
  } catch (const cublasStatus_t& error) {
    return static_cast<int>(error);
  }
}

}  // namespace ingot::kernels::gpu
