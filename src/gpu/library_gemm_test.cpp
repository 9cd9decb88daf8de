// gpu/library_gemm.cpp over a cuBLASLt of the test's own, which multiplies on the host what it is asked for, column by column, as NVIDIA
// documents it. What the real one makes of the same calls only a GPU shows.
#include "gpu/library_gemm.h"

#include <cublasLt.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace {

struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t stride;
};
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, alignment[4] = {256, 256, 256, 256};
};

// What is alive, and what the library is to say next.
int alive = 0;
cublasStatus_t answer_of_search = CUBLAS_STATUS_SUCCESS, answer_of_matmul = CUBLAS_STATUS_SUCCESS;
Preference searched;
cublasLtMatmulAlgo_t taken;
size_t workspace_given;
void *workspace_at, *stream_given;

float number_at(const void* data, cudaDataType_t type, int64_t index) {
  if (type == CUDA_R_32F) return static_cast<const float*>(data)[index];
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[index]) << 16);
}
uint16_t bf16_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Value>
cublasStatus_t assign(Value& to, const void* from, size_t size) {
  if (size != sizeof(Value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

const Layout& layout_at(cublasLtMatrixLayout_t layout) { return *reinterpret_cast<const Layout*>(layout); }

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return 130000; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  static int library;
  *handle = reinterpret_cast<cublasLtHandle_t>(&library);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
  if (ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, ld});
  ++alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  --alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t compute, cudaDataType_t scale) {
  *description = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{compute, scale});
  ++alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete reinterpret_cast<Description*>(description);
  --alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              size_t size) {
  auto& d = *reinterpret_cast<Description*>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(d.transpose_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(d.transpose_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(d.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(d.bias, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return assign(d.bias_type, value, size);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  ++alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete reinterpret_cast<Preference*>(preference);
  --alive;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  auto& p = *reinterpret_cast<Preference*>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(p.workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(p.reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(p.alignment[0], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(p.alignment[1], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(p.alignment[2], value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(p.alignment[3], value, size);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference,
                                              int asked, cublasLtMatmulHeuristicResult_t results[], int* count) {
  searched = *reinterpret_cast<Preference*>(preference);
  if (answer_of_search != CUBLAS_STATUS_SUCCESS) return answer_of_search;
  *count = std::min(asked, 4);
  for (int i = 0; i < *count; ++i) {
    results[i] = {};
    for (uint64_t word = 0; word < 8; ++word) results[i].algo.data[word] = 100 * static_cast<uint64_t>(i) + word;
    results[i].workspaceSize = 1000 * static_cast<size_t>(i);
    results[i].state = i == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  result->workspaceSize = 2048;
  return algorithm->data[0] == 666 ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes, cudaStream_t stream) {
  if (answer_of_matmul != CUBLAS_STATUS_SUCCESS) return answer_of_matmul;
  const auto& how = *reinterpret_cast<const Description*>(description);
  const auto &left = layout_at(a_layout), &right = layout_at(b_layout), &sum = layout_at(c_layout), &out = layout_at(d_layout);
  taken = *algorithm;
  workspace_at = workspace;
  workspace_given = workspace_bytes;
  stream_given = stream;
  const bool left_is_transposed = how.transpose_a == CUBLAS_OP_T, right_is_transposed = how.transpose_b == CUBLAS_OP_T;
  const uint64_t m = left_is_transposed ? left.columns : left.rows, k = left_is_transposed ? left.rows : left.columns;
  const uint64_t n = right_is_transposed ? right.rows : right.columns;
  if ((right_is_transposed ? right.columns : right.rows) != k || out.rows != m || out.columns != n || how.compute != CUBLAS_COMPUTE_32F ||
      how.scale != CUDA_R_32F || left.type != right.type || c != d || sum.type != out.type)
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool has_bias = how.epilogue == CUBLASLT_EPILOGUE_BIAS;
  if (has_bias != (how.bias != nullptr) || (has_bias && how.bias_type != out.type)) return CUBLAS_STATUS_INVALID_VALUE;
  const auto at = [](const Layout& layout, bool transposed, uint64_t row, uint64_t column) {
    if (transposed) std::swap(row, column);
    return static_cast<int64_t>(row) + layout.stride * static_cast<int64_t>(column);
  };
  for (uint64_t row = 0; row < m; ++row)
    for (uint64_t column = 0; column < n; ++column) {
      double value = 0;
      for (uint64_t i = 0; i < k; ++i)
        value += static_cast<double>(number_at(a, left.type, at(left, left_is_transposed, row, i))) *
                 number_at(b, right.type, at(right, right_is_transposed, i, column));
      value *= *static_cast<const float*>(alpha);
      const auto place = at(out, false, row, column);
      if (const float factor = *static_cast<const float*>(beta); factor != 0)
        value += static_cast<double>(factor) * number_at(c, sum.type, place);
      if (has_bias) value += number_at(how.bias, out.type, static_cast<int64_t>(row));
      if (out.type == CUDA_R_32F) static_cast<float*>(d)[place] = static_cast<float>(value);
      else static_cast<uint16_t*>(d)[place] = bf16_of(static_cast<float>(value));
    }
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"

namespace ingot::kernels::gpu {
namespace {

// Numbers of either kind, with what lies between rows.
struct Numbers {
  GemmNumbers kind;
  std::vector<float> wide;
  std::vector<uint16_t> narrow;

  Numbers(GemmNumbers kind_of, size_t count, std::mt19937& random) : kind(kind_of), wide(count), narrow(count) {
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (size_t i = 0; i < count; ++i) {
      narrow[i] = bf16_of(uniform(random));
      wide[i] = number_at(narrow.data(), CUDA_R_16BF, static_cast<int64_t>(i));
    }
  }
  void* data() { return kind == GemmNumbers::fp32 ? static_cast<void*>(wide.data()) : narrow.data(); }
  double at(int64_t index) { return number_at(data(), kind == GemmNumbers::fp32 ? CUDA_R_32F : CUDA_R_16BF, index); }
};

struct LibraryGemmTest : ::testing::Test {
  ~LibraryGemmTest() override {
    answer_of_search = answer_of_matmul = CUBLAS_STATUS_SUCCESS;
    EXPECT_EQ(alive, 0) << "what was made of the library was given back";
  }
};

// out = a b + out + bias by hand, for each way in which matrices can lie.
TEST_F(LibraryGemmTest, multiplies_by_row_what_the_library_has_by_column) {
  constexpr int64_t m = 3, n = 5, k = 4, gap = 2;
  std::mt19937 random(1);
  for (const bool a_by_column : {false, true})
    for (const bool b_by_column : {false, true})
      for (const auto numbers : {GemmNumbers::fp32, GemmNumbers::bf16})
        for (const auto sums : {GemmNumbers::fp32, numbers})
          for (const bool adds : {false, true})
            for (const bool has_bias : {false, true}) {
              const int64_t a_stride = (a_by_column ? m : k) + gap, b_stride = (b_by_column ? k : n) + gap, out_stride = n + gap;
              Numbers a(numbers, 40, random), b(numbers, 40, random), out(sums, 40, random), bias(sums, n, random);
              auto before = out;
              LibraryGemm gemm{m,
                               n,
                               k,
                               {a.data(), a_stride, a_by_column},
                               {b.data(), b_stride, b_by_column},
                               out.data(),
                               out_stride,
                               has_bias ? bias.data() : nullptr,
                               numbers,
                               sums,
                               adds};
              ASSERT_EQ(run_gemm(gemm, {{}, 0}, 0, nullptr, nullptr), 0);
              for (int64_t row = 0; row < m; ++row)
                for (int64_t column = 0; column < out_stride; ++column) {
                  const auto place = row * out_stride + column;
                  if (row * out_stride + column >= 40) continue;
                  double wanted = adds ? before.at(place) : 0;
                  for (int64_t i = 0; i < k; ++i)
                    wanted += a.at(a_by_column ? i * a_stride + row : row * a_stride + i) *
                              b.at(b_by_column ? column * b_stride + i : i * b_stride + column);
                  if (has_bias && column < n) wanted += bias.at(column);
                  if (column >= n) EXPECT_EQ(out.at(place), before.at(place)) << "between rows";
                  else EXPECT_NEAR(out.at(place), wanted, sums == GemmNumbers::fp32 ? 1e-5 : 0.02) << row << " " << column;
                }
            }
}

TEST_F(LibraryGemmTest, proposes_what_the_library_is_able_to) {
  LibraryGemm gemm{3, 5, 4, {nullptr, 4, false}, {nullptr, 5, false}, nullptr, 5, nullptr, GemmNumbers::bf16, GemmNumbers::bf16, false};
  std::vector<GemmAlgorithm> found(8);
  ASSERT_EQ(gemm_algorithms(gemm, 0, found.data(), 8), 3);
  EXPECT_EQ(found[0].words, (std::array<uint64_t, 8>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(found[1].words[0], 200) << "the second says that it cannot";
  EXPECT_EQ(found[1].workspace_bytes, 2000);
  EXPECT_EQ(gemm_algorithms(gemm, 0, found.data(), 1), 1);
  EXPECT_EQ(searched.workspace, kMostGemmWorkspace);
  EXPECT_EQ(searched.reductions, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) << "no sums in bf16, none by atomics";
  for (const auto alignment : searched.alignment) EXPECT_EQ(alignment, 16);
}

TEST_F(LibraryGemmTest, gives_the_library_the_algorithm_as_it_was) {
  float numbers[4] = {1, 2, 3, 4};
  char workspace = 0, stream = 0;
  LibraryGemm gemm{2, 2, 1, {numbers, 1, false}, {numbers, 2, false}, numbers, 2, nullptr, GemmNumbers::fp32, GemmNumbers::fp32, false};
  const GemmAlgorithm algorithm{{8, 7, 6, 5, 4, 3, 2, ~uint64_t{0}}, 4096};
  ASSERT_EQ(run_gemm(gemm, algorithm, 0, &workspace, &stream), 0);
  EXPECT_TRUE(std::equal(algorithm.words.begin(), algorithm.words.end(), taken.data));
  EXPECT_EQ(workspace_given, 4096);
  EXPECT_EQ(workspace_at, &workspace);
  EXPECT_EQ(stream_given, &stream);
}

TEST_F(LibraryGemmTest, tells_what_the_library_would_not_take) {
  LibraryGemm gemm{3, 5, 4, {nullptr, 4, false}, {nullptr, 5, false}, nullptr, 5, nullptr, GemmNumbers::bf16, GemmNumbers::bf16, false};
  EXPECT_EQ(is_able(gemm, {{1}, 2048}, 0), 1);
  EXPECT_EQ(is_able(gemm, {{1}, 2047}, 0), 0) << "it needs more memory";
  EXPECT_EQ(is_able(gemm, {{666}, 4096}, 0), 0);
  gemm.out_stride = 1;
  EXPECT_EQ(is_able(gemm, {{1}, 4096}, 0), 0);
}

TEST_F(LibraryGemmTest, says_what_the_library_said) {
  float numbers[4] = {1, 2, 3, 4};
  LibraryGemm gemm{2, 2, 1, {numbers, 1, false}, {numbers, 2, false}, numbers, 2, nullptr, GemmNumbers::fp32, GemmNumbers::fp32, false};
  GemmAlgorithm found{};
  answer_of_search = CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_EQ(gemm_algorithms(gemm, 0, &found, 1), 0);
  answer_of_search = CUBLAS_STATUS_INTERNAL_ERROR;
  EXPECT_EQ(gemm_algorithms(gemm, 0, &found, 1), -static_cast<int>(CUBLAS_STATUS_INTERNAL_ERROR));
  answer_of_matmul = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_EQ(run_gemm(gemm, found, 0, nullptr, nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
  gemm.out_stride = 1;  // less than a row
  EXPECT_EQ(run_gemm(gemm, found, 0, nullptr, nullptr), CUBLAS_STATUS_INVALID_VALUE);
}

}  // namespace
}  // namespace ingot::kernels::gpu
