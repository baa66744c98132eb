# Targets of the project: one library per room, one test binary per test file.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()
# Asserts of third-party headers go with -DNDEBUG; our own LOCKSTEP_CHECK is always on.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE)
  # Nothing of an object depends on the folder it is built in, so that what one preset (or another
  # clone) compiled serves each that compiles the same by the same flags.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
               CCACHE_ABSSTDERR=1 ${LOCKSTEP_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
find_program(LOCKSTEP_MOLD mold)
if(LOCKSTEP_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(LOCKSTEP_SANITIZE)
  add_compile_options(-fsanitize=${LOCKSTEP_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${LOCKSTEP_SANITIZE})
endif()

# -ffp-contract=off: a fused multiply-add is written where it is meant (std::fma, hn::MulAdd),
# never chosen by the compiler, because it changes bits.
add_library(lockstep_options INTERFACE)
target_include_directories(lockstep_options INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(lockstep_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror;-Wno-missing-field-initializers>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>)

# lockstep_library(NAME room SOURCES a.cc … DEPS lockstep::x …)
# Makes target lockstep_<room> with alias lockstep::<room>. A room of headers only has no SOURCES.
function(lockstep_library)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(lockstep_${ARG_NAME} STATIC ${ARG_SOURCES})
    target_link_libraries(lockstep_${ARG_NAME} PUBLIC ${ARG_DEPS} PRIVATE lockstep_options)
    target_include_directories(lockstep_${ARG_NAME} PUBLIC ${CMAKE_SOURCE_DIR})
  else()
    add_library(lockstep_${ARG_NAME} INTERFACE)
    target_link_libraries(lockstep_${ARG_NAME} INTERFACE ${ARG_DEPS})
    target_include_directories(lockstep_${ARG_NAME} INTERFACE ${CMAKE_SOURCE_DIR})
  endif()
  add_library(lockstep::${ARG_NAME} ALIAS lockstep_${ARG_NAME})
endfunction()

# lockstep_test(NAME text_tokenizer_test SOURCES tokenizer_test.cc DEPS lockstep::text
#               LABELS unit core [TIMEOUT seconds])
# One gtest binary, one ctest entry. Label `core` marks what runs under the thread sanitizer. Whole
# clusters (labels `integration`, `process`) run one at a time: each takes all cores, has leases
# that a starved process would lose, and starts parts again on ports that were free.
function(lockstep_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_LABELS)
    message(FATAL_ERROR "lockstep_test(${ARG_NAME}) needs LABELS")
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main
                                            lockstep_options)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABELS MATCHES "integration|process")
    set_tests_properties(${ARG_NAME} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# What GoogleTest prints last when every case skipped itself. One that skips says nothing of the
# others, and ctest asks for this before it looks at the exit status.
set(LOCKSTEP_ALL_SKIPPED "\\[  PASSED  \\] 0 tests\\.\n(\\[  SKIPPED \\] [^\n]*\n)+$")

# lockstep_proto(NAME proto_v1 PROTOS lockstep/v1/types.proto … [GRPC] [ROOT folder] DEPS …)
# Generates C++ (and gRPC stubs with GRPC) under the build folder; paths are relative to ROOT, which
# is proto/ unless given.
function(lockstep_proto)
  cmake_parse_arguments(ARG "GRPC" "NAME;ROOT" "PROTOS;DEPS" ${ARGN})
  if(NOT ARG_ROOT)
    set(ARG_ROOT ${CMAKE_SOURCE_DIR}/proto)
  endif()
  set(out ${CMAKE_BINARY_DIR}/gen)
  file(MAKE_DIRECTORY ${out})
  set(sources)
  foreach(proto ${ARG_PROTOS})
    string(REGEX REPLACE "\\.proto$" "" stem ${proto})
    set(outputs ${out}/${stem}.pb.cc ${out}/${stem}.pb.h)
    set(plugin)
    if(ARG_GRPC)
      list(APPEND outputs ${out}/${stem}.grpc.pb.cc ${out}/${stem}.grpc.pb.h)
      set(plugin --grpc_out=${out}
                 --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>)
    endif()
    add_custom_command(
      OUTPUT ${outputs}
      COMMAND protobuf::protoc -I${ARG_ROOT} --cpp_out=${out} ${plugin} ${proto}
      DEPENDS ${ARG_ROOT}/${proto}
      WORKING_DIRECTORY ${ARG_ROOT}
      VERBATIM)
    list(APPEND sources ${outputs})
  endforeach()
  add_library(lockstep_${ARG_NAME} STATIC ${sources})
  target_include_directories(lockstep_${ARG_NAME} SYSTEM PUBLIC ${out})
  target_link_libraries(lockstep_${ARG_NAME} PUBLIC protobuf::libprotobuf ${ARG_DEPS})
  if(ARG_GRPC)
    target_link_libraries(lockstep_${ARG_NAME} PUBLIC gRPC::grpc++)
  endif()
  add_library(lockstep::${ARG_NAME} ALIAS lockstep_${ARG_NAME})
endfunction()
