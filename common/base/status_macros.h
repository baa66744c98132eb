#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on an error status; the only control-flow macros of the repository.
#define LOCKSTEP_RETURN_IF_ERROR(expression)                                    \
  do {                                                                          \
    if (absl::Status lockstep_status_ = (expression); !lockstep_status_.ok()) { \
      return lockstep_status_;                                                  \
    }                                                                           \
  } while (false)

#define LOCKSTEP_CONCAT_INNER_(a, b) a##b
#define LOCKSTEP_CONCAT_(a, b) LOCKSTEP_CONCAT_INNER_(a, b)

// LOCKSTEP_ASSIGN_OR_RETURN(auto x, F()): declares or assigns x, or returns F's status.
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expression) \
  LOCKSTEP_ASSIGN_OR_RETURN_IMPL_(LOCKSTEP_CONCAT_(lockstep_or_, __LINE__), lhs, expression)
#define LOCKSTEP_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expression) \
  auto statusor = (expression);                                    \
  if (!statusor.ok()) return std::move(statusor).status();         \
  lhs = *std::move(statusor)
