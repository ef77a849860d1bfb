# llama.cpp, built once outside the checkout by tools/llama. Gives the target kvtide_llama_cpp.
#
# KVTIDE_LLAMA_BUILD: a build folder of llama.cpp (default: the one tools/llama made). Its source is read from its CMake cache, so a
# user's own tree and backends (CUDA, Vulkan, Metal, CANN ...) need nothing here.
set(KVTIDE_LLAMA_BUILD "" CACHE PATH "llama.cpp build folder; empty: the one that tools/llama prints")
if(NOT KVTIDE_LLAMA_BUILD)
  execute_process(COMMAND ${PROJECT_SOURCE_DIR}/tools/llama --print-build
    OUTPUT_VARIABLE llama_build OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE llama_result)
  if(NOT llama_result EQUAL 0)
    message(FATAL_ERROR "llama.cpp is not built. Run tools/setup, or set KVTIDE_LLAMA_BUILD to a build folder of it.")
  endif()
else()
  set(llama_build ${KVTIDE_LLAMA_BUILD})
endif()
load_cache(${llama_build} READ_WITH_PREFIX KVTIDE_ CMAKE_HOME_DIRECTORY)
set(llama_source ${KVTIDE_CMAKE_HOME_DIRECTORY})

add_library(kvtide_llama_cpp INTERFACE)
target_include_directories(kvtide_llama_cpp SYSTEM INTERFACE
  ${llama_source}/include ${llama_source}/ggml/include ${llama_source}/common ${llama_source}/vendor)
foreach(lib llama-common llama ggml ggml-base)
  target_link_libraries(kvtide_llama_cpp INTERFACE ${llama_build}/bin/${CMAKE_SHARED_LIBRARY_PREFIX}${lib}${CMAKE_SHARED_LIBRARY_SUFFIX})
endforeach()
target_link_options(kvtide_llama_cpp INTERFACE -Wl,-rpath,${llama_build}/bin)
