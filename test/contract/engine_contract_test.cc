// The contract on the fake engine, in both layouts.
#include "engine_contract.h"

#include "engine/fake/fake_engine.h"

namespace kvtide::engine {
namespace {

EngineCase fake(const char* name, FakeEngineConfig config) {
  return {name, [config] { return std::shared_ptr<Engine>(make_fake_engine(config)); }};
}

const FakeEngineConfig kUnifiedCase{
    .layout = Layout::kUnified, .seqs = 8, .block_tokens = 16, .device_tokens = 1024, .seq_tokens_max = 512, .batch_tokens_max = 512};
const FakeEngineConfig kLanesCase{.layout = Layout::kLanes, .seqs = 3, .block_tokens = 16, .seq_tokens_max = 512, .batch_tokens_max = 512};
const FakeEngineConfig kWideCells{
    .seqs = 8, .block_tokens = 16, .device_tokens = 1024, .seq_tokens_max = 512, .batch_tokens_max = 512, .token_bytes = 20};

INSTANTIATE_TEST_SUITE_P(Fake, EngineContract,
                         testing::Values(fake("Unified", kUnifiedCase), fake("Lanes", kLanesCase), fake("WideCells", kWideCells)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace kvtide::engine
