# The engine contract. fast: the fake. model: llama.cpp with a real model, skipped with a reason where there is none.
kvtide_test(engine_contract_test SRCS ${CMAKE_CURRENT_LIST_DIR}/engine_contract_test.cc DEPS engine_fake)
if(KVTIDE_LLAMA)
  kvtide_test(llamacpp_contract_test SRCS ${CMAKE_CURRENT_LIST_DIR}/llamacpp_contract_test.cc DEPS engine_llamacpp LABELS model TIMEOUT 900)
  kvtide_test(llamacpp_text_test SRCS ${CMAKE_CURRENT_LIST_DIR}/llamacpp_text_test.cc DEPS engine_llamacpp LABELS model TIMEOUT 120)
endif()
