#include "index/block_index.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/random.h"
#include "index/history.h"

namespace kvtide::index {
namespace {

const base::Digest kModel{1, 2, 3};

BlockKey root(std::string_view tenant, std::string_view salt = "") { return root_key({tenant, salt, kModel, 4}); }

TEST(Keys, SameTokensUnderAnotherTenantSaltModelOrBlockSizeHaveAnotherKey) {
  const std::vector<int32_t> tokens{1, 2, 3, 4};
  const base::Digest other_model{9};
  std::set<BlockKey> keys{chain_keys(root("a"), tokens, 4)[0], chain_keys(root("b"), tokens, 4)[0], chain_keys(root("a", "s"), tokens, 4)[0],
                          chain_keys(root_key({"a", "", other_model, 4}), tokens, 4)[0], chain_keys(root_key({"a", "", kModel, 2}), tokens, 2)[0],
                          chain_keys(root_key({"as", "", kModel, 4}), tokens, 4)[0]};
  EXPECT_EQ(keys.size(), 6U);
}

TEST(Keys, AKeyDependsOnEverythingBeforeIt) {
  const auto a = chain_keys(root("t"), std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  const auto b = chain_keys(root("t"), std::vector<int32_t>{0, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  ASSERT_EQ(a.size(), 2U);
  EXPECT_NE(a[1], b[1]);
  EXPECT_EQ(a[1], chain_keys(root("t"), std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8, 0, 0}, 4)[1]);
}

BlockKey nth_key(uint64_t n) {
  BlockKey key{};
  // Few distinct leading bytes, so that probing and deletion meet long runs.
  key[0] = static_cast<uint8_t>(n % 7);
  for (size_t i = 0; i < 8; ++i) key[8 + i] = static_cast<uint8_t>(n >> (8 * i));
  return key;
}

TEST(BlockIndex, ABlockLivesWhileACopyAClaimOrAChildHoldsIt) {
  BlockIndex index;
  const BlockId a = index.ensure({}, nth_key(1));
  const BlockId b = index.ensure(a, nth_key(2));
  index.add_copy(b, Tier::kHost, SlotId(7));
  index.sweep(a);
  EXPECT_EQ(index.find(nth_key(1)), a);
  index.claim(a, BranchId(3));
  index.remove_copy(b, Tier::kHost);
  index.sweep(b);
  EXPECT_FALSE(index.find(nth_key(2)).valid());
  EXPECT_TRUE(index.find(nth_key(1)).valid());
  EXPECT_TRUE(index.release(a, BranchId(3)));
  index.sweep(a);
  EXPECT_EQ(index.size(), 0U);
}

TEST(BlockIndex, AgreesWithANaiveMapUnderRandomOperations) {
  BlockIndex index;
  base::Random random(7);
  std::map<BlockKey, std::pair<BlockKey, bool>> model;  // key -> (parent, has host copy)
  std::vector<BlockKey> known;
  auto child_of = [&](const BlockKey& key) {
    for (const auto& [k, v] : model) {
      if (v.first == key) return true;
    }
    return false;
  };
  for (uint64_t step = 0; step < 3000; ++step) {
    if (known.empty() || random.below(3) != 0) {
      const BlockKey key = nth_key(step);
      const BlockKey parent = known.empty() || random.below(4) == 0 ? BlockKey{} : known[random.below(known.size())];
      const BlockId id = index.ensure(parent == BlockKey{} ? BlockId{} : index.find(parent), key);
      index.add_copy(id, Tier::kHost, SlotId(static_cast<uint32_t>(step)));
      model[key] = {parent, true};
      known.push_back(key);
    } else {
      const size_t i = random.below(known.size());
      const BlockKey key = known[i];
      if (child_of(key)) continue;
      index.remove_copy(index.find(key), Tier::kHost);
      index.sweep(index.find(key));
      model.erase(key);
      known[i] = known.back();
      known.pop_back();
    }
    if (step % 100 == 0) index.check_invariants();
  }
  EXPECT_EQ(index.size(), model.size());
  for (const auto& [key, value] : model) {
    const BlockId id = index.find(key);
    ASSERT_TRUE(id.valid());
    EXPECT_EQ(index.at(id).parent.valid() ? index.at(index.at(id).parent).key : BlockKey{}, value.first);
  }
}

TEST(BlockIndex, StaysUnderTwoHundredBytesABlock) {
  BlockIndex index;
  BlockId parent;
  for (int32_t n = 0; n < (1 << 17); ++n) {
    parent = index.ensure(n % 1000 == 0 ? BlockId{} : parent, child_key(root("t"), std::vector<int32_t>{n}));
    index.claim(parent, BranchId(1));
  }
  EXPECT_LT(index.memory_bytes() / index.size(), 200U);
}

TEST(BlockIndex, AnIdUsedAgainIsNotTakenForItsFormerSelf) {
  BlockIndex index;
  const BlockId a = index.ensure({}, nth_key(1));
  const uint32_t epoch = index.at(a).epoch;
  index.sweep(a);
  EXPECT_FALSE(index.alive(a, epoch));
  const BlockId b = index.ensure({}, nth_key(2));
  EXPECT_EQ(a, b);
  EXPECT_FALSE(index.alive(a, epoch));
}

TEST(History, ForgetsTheOldestAndTellsWhyACopyWent) {
  History history(2);
  history.note(nth_key(1 << 8), Loss::kNone);
  history.note(nth_key(2), Loss::kCapacity);
  history.note(nth_key(3), Loss::kNone);
  EXPECT_EQ(history.loss(nth_key(2)), Loss::kCapacity);
  EXPECT_TRUE(history.seen(nth_key(3)));
}

}  // namespace
}  // namespace kvtide::index
