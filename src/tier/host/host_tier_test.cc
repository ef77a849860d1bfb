#include "tier/host/host_tier.h"

#include <gtest/gtest.h>

#include <cstring>

namespace kvtide::tier {
namespace {

constexpr int64_t kBlock = 100;

std::unique_ptr<HostTier> make(int64_t slots) { return std::move(HostTier::make(slots * 128, kBlock).value()); }

SlotId store(HostTier& tier, char fill) {
  StoreTicket ticket = std::move(tier.prepare_store().value());
  const SlotId slot = ticket.lease.slot();
  std::memset(ticket.bytes.data(), fill, ticket.bytes.size());
  tier.complete_store(std::move(ticket));
  return slot;
}

TEST(HostTier, GivesBackWhatWasStored) {
  auto tier = make(2);
  const SlotId a = store(*tier, 'a');
  const SlotId b = store(*tier, 'b');
  EXPECT_EQ(static_cast<char>(tier->prepare_load(a)->bytes[kBlock - 1]), 'a');
  EXPECT_EQ(static_cast<char>(tier->prepare_load(b)->bytes[0]), 'b');
  EXPECT_EQ(tier->stats().leases, 0);
}

TEST(HostTier, NeverHoldsAByteMoreThanItsBudget) {
  auto tier = make(3);
  for (int i = 0; i < 3; ++i) store(*tier, 'x');
  EXPECT_EQ(tier->prepare_store().error().code, base::Code::kResourceExhausted);
  EXPECT_LE(tier->stats().peak_bytes, tier->stats().budget_bytes);
  tier->drop(SlotId(1));
  EXPECT_EQ(store(*tier, 'y'), SlotId(1));
}

TEST(HostTier, ABlockThatWasNeverCompletedIsGivenBack) {
  auto tier = make(1);
  {
    const StoreTicket lost = std::move(tier->prepare_store().value());
    EXPECT_EQ(tier->stats().leases, 1);
  }
  EXPECT_EQ(tier->stats().slots_free, 1);
  tier->abort_store(std::move(tier->prepare_store().value()));
  EXPECT_EQ(tier->stats().slots_free, 1);
}

TEST(HostTier, BytesThatChangedInMemoryAreAMissNotAnAnswer) {
  auto tier = make(1);
  StoreTicket ticket = std::move(tier->prepare_store().value());
  const SlotId slot = ticket.lease.slot();
  const std::span<std::byte> bytes = ticket.bytes;
  tier->complete_store(std::move(ticket));
  bytes[7] ^= std::byte{1};
  EXPECT_EQ(tier->prepare_load(slot).error().code, base::Code::kCorrupt);
  EXPECT_EQ(tier->stats().corrupt_loads, 1);
  EXPECT_EQ(tier->stats().leases, 0);
}

TEST(HostTier, ABudgetUnderOneBlockIsRefusedWithTheFlagsName) {
  const auto made = HostTier::make(10, kBlock);
  ASSERT_FALSE(made.has_value());
  EXPECT_NE(made.error().message.find("--host-memory"), std::string::npos);
}

TEST(HostTierDeathTest, DroppingALeasedSlotIsABug) {
  auto tier = make(1);
  const SlotId slot = store(*tier, 'a');
  EXPECT_DEATH(
      {
        const auto load = tier->prepare_load(slot);
        tier->drop(slot);
      },
      "CHECK failed");
}

}  // namespace
}  // namespace kvtide::tier
