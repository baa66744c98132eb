# The CUDA language, and the targets that use it. Included at the root, since CMake wants the
# language enabled above every folder that compiles it.
if(NOT LOCKSTEP_NVCC)
  message(FATAL_ERROR "LOCKSTEP_ENABLE_CUDA is on, but there is no nvcc on the PATH or in "
                      "/usr/local/cuda/bin; install CUDA 13 or configure with "
                      "LOCKSTEP_ENABLE_CUDA=OFF")
endif()
if(NOT CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_COMPILER ${LOCKSTEP_NVCC})
endif()
# Code of rooms for all supported GPUs: compiled for the oldest (and by the driver for what is newer
# than Hopper), and with Hopper's own instructions.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80 90a-real)
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13 REQUIRED)
# CMake 3.25 does not know that nvcc speaks C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -DNDEBUG")

# The first line decides bits: a fused multiply-add is written where it is meant (__fmaf_rn),
# division and root are IEEE, denormals are kept. Constexpr functions of our headers serve host and
# device alike. Code for several GPUs is packed tightly: a binary would carry megabytes more.
add_library(lockstep_cuda_options INTERFACE)
target_compile_options(lockstep_cuda_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-prec-div=true;-prec-sqrt=true;-ftz=false>
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--Werror=all-warnings;-compress-mode=size>
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wno-missing-field-initializers>")

# What `cmake --build --preset cuda --target lockstep_gpu` builds: the CUDA rooms, their tests and
# benches, and nothing that needs gRPC.
add_custom_target(lockstep_gpu)

# lockstep_cuda_library(NAME kernels_cuda SOURCES attention.cu … DEPS lockstep::x …
#                       [ONLY_SM90 | PORTABLE])
# As lockstep_library, for rooms with .cu files. ONLY_SM90: kernels that nothing but Hopper can run.
# PORTABLE: kernels of instructions that every GPU since Ampere has; Hopper gets the same program,
# so that tests there run what others do.
function(lockstep_cuda_library)
  cmake_parse_arguments(ARG "ONLY_SM90;PORTABLE" "NAME" "SOURCES;DEPS" ${ARGN})
  lockstep_library(NAME ${ARG_NAME} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} CUDA::cudart_static)
  target_link_libraries(lockstep_${ARG_NAME} PRIVATE lockstep_cuda_options)
  if(ARG_ONLY_SM90)
    set_target_properties(lockstep_${ARG_NAME} PROPERTIES CUDA_ARCHITECTURES 90a-real)
  elseif(ARG_PORTABLE)
    set_target_properties(lockstep_${ARG_NAME} PROPERTIES CUDA_ARCHITECTURES OFF)
    target_compile_options(lockstep_${ARG_NAME} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:-gencode=arch=compute_80,code=[sm_80,sm_90,compute_80]>")
  endif()
  add_dependencies(lockstep_gpu lockstep_${ARG_NAME})
endfunction()

# lockstep_gpu_test(NAME gpu_attention_test SOURCES attention_test.cc DEPS lockstep::kernels_cuda
#                   [TIMEOUT seconds])
# As lockstep_test, with label `gpu`. Its cases skip themselves where there is no device, and ctest
# says so when none ran. One at a time: they share the device's memory.
function(lockstep_gpu_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  lockstep_test(NAME ${ARG_NAME} SOURCES ${ARG_SOURCES} DEPS ${ARG_DEPS} LABELS gpu
                TIMEOUT ${ARG_TIMEOUT})
  set_tests_properties(${ARG_NAME} PROPERTIES RUN_SERIAL ON
                       SKIP_REGULAR_EXPRESSION "${LOCKSTEP_ALL_SKIPPED}")
  add_dependencies(lockstep_gpu ${ARG_NAME})
endfunction()
