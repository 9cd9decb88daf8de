// As cublas_v2.h.
#pragma once

enum cusolverStatus_t { CUSOLVER_STATUS_SUCCESS };
