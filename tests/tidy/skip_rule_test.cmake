# What ctest takes for "skipped" (LOCKSTEP_ALL_SKIPPED) is a binary none of whose cases ran, never
# one of which a case failed: ctest looks at this before the exit status.
# Usage: cmake -DBUILD_RULES=common/cmake/lockstep_build.cmake -P skip_rule_test.cmake
file(STRINGS "${BUILD_RULES}" rule REGEX "^set\\(LOCKSTEP_ALL_SKIPPED ")
cmake_language(EVAL CODE "${rule}")

set(none_ran "[==========] 2 tests from 1 test suite ran. (0 ms total)
[  PASSED  ] 0 tests.
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Device.A
[  SKIPPED ] Device.B
")
set(one_ran "[  PASSED  ] 1 test.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Device.B
")
set(one_failed "[  PASSED  ] 0 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] Device.B
[  FAILED  ] 1 test, listed below:
[  FAILED  ] Device.A

 1 FAILED TEST
")
if(NOT none_ran MATCHES "${LOCKSTEP_ALL_SKIPPED}")
  message(FATAL_ERROR "a binary whose cases all skipped themselves does not count as skipped")
endif()
foreach(output one_ran one_failed)
  if("${${output}}" MATCHES "${LOCKSTEP_ALL_SKIPPED}")
    message(FATAL_ERROR "${output}: counts as skipped, whatever its exit status")
  endif()
endforeach()
