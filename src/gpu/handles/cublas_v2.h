// Names that torch's headers need and we do not: see CMakeLists.txt.
#pragma once

using cublasHandle_t = struct cublasContext*;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
