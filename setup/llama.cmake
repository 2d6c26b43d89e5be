# Options of llama.cpp's build: only what duo loads is compiled. CMake includes this file after every project() command
# (-DCMAKE_PROJECT_INCLUDE=/absolute/path/of/this/file in CMAKE_ARGS). Options after it in CMAKE_ARGS win, and
# -DLLAVA_BUILD=on compiles the rest, too.
if(PROJECT_NAME STREQUAL "llama_cpp") # llama-cpp-python
    set(GGML_RPC ON CACHE BOOL "devices of other machines") # off by default
    set(LLAVA_BUILD OFF CACHE BOOL "models of images and sound")
    # GCC before 12.4 and 13.3 compiles the kernels for AMX wrongly: a decode would be a segmentation fault.
    include(CheckCXXCompilerFlag)
    check_cxx_compiler_flag(-mno-amx-int8 HAS_NO_AMX)
    if(HAS_NO_AMX)
        add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-mno-amx-int8>)
    endif()
elseif(PROJECT_NAME STREQUAL "llama.cpp" AND NOT LLAVA_BUILD)
    set(LLAMA_BUILD_COMMON OFF) # a normal variable hides the value that llama-cpp-python forces into the cache
endif()
