#include "services/text/bpe.h"

#include <algorithm>
#include <functional>

#include "common/base/check.h"

namespace lockstep::text {
namespace {

// Order of a heap whose top is the next merge.
bool ComesLater(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec) {
  wholes_.reserve(spec.vocabulary.size());
  for (const VocabularyEntry& entry : spec.vocabulary) {
    if (!entry.is_byte_level || entry.bytes.empty()) continue;
    wholes_[entry.bytes] = {.id = entry.id, .is_final = spec.ignores_merges};
    if (entry.bytes.size() == 1) id_of_byte_[static_cast<uint8_t>(entry.bytes[0])] = entry.id;
  }
  rules_.reserve(spec.merges.size());
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const MergeRule& merge = spec.merges[rank];
    // Of two equal rules the later one counts, as in Hugging Face's reader.
    rules_[Key(merge.left, merge.right)] = {static_cast<uint32_t>(rank), merge.result};
  }
  if (spec.ignores_merges) return;
  // Most words of a text are one token. Where merging the bytes of an entry gives that entry, which
  // is found out here once, Encode can answer from the vocabulary.
  BpeScratch scratch;
  std::vector<int32_t> ids;
  for (auto& [word, whole] : wholes_) {
    ids.clear();
    Merge(word, &scratch, &ids);
    whole.is_final = ids.size() == 1 && ids[0] == whole.id;
  }
}

void Bpe::Encode(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  const auto whole = wholes_.find(word);
  if (whole != wholes_.end() && whole->second.is_final) {
    ids->push_back(whole->second.id);
    return;
  }
  Merge(word, scratch, ids);
}

void Bpe::PushCandidate(int32_t at, BpeScratch* scratch) const {
  const BpeScratch::Symbol& symbol = scratch->symbols[at];
  if (symbol.next < 0) return;
  const int32_t right = scratch->symbols[symbol.next].id;
  const auto rule = rules_.find(Key(symbol.id, right));
  if (rule == rules_.end()) return;
  scratch->heap.push_back({rule->second.rank, at, symbol.id, right, rule->second.result});
}

void Bpe::Merge(std::string_view word, BpeScratch* scratch, std::vector<int32_t>* ids) const {
  LOCKSTEP_CHECK_LT(word.size(), size_t{INT32_MAX});
  std::vector<BpeScratch::Symbol>& symbols = scratch->symbols;
  std::vector<BpeScratch::Candidate>& heap = scratch->heap;
  const int32_t count = static_cast<int32_t>(word.size());
  symbols.resize(word.size());
  heap.clear();
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {id_of_byte_[static_cast<uint8_t>(word[i])], i - 1, i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i < count; ++i) PushCandidate(i, scratch);
  std::make_heap(heap.begin(), heap.end(), ComesLater);
  const auto push = [&](int32_t at) {
    const size_t size = heap.size();
    PushCandidate(at, scratch);
    if (heap.size() > size) std::push_heap(heap.begin(), heap.end(), ComesLater);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    const BpeScratch::Candidate top = heap.back();
    heap.pop_back();
    BpeScratch::Symbol& left = symbols[top.at];
    if (left.id != top.left || left.next < 0 || symbols[left.next].id != top.right) continue;
    BpeScratch::Symbol& right = symbols[left.next];
    left.id = top.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].previous = top.at;
    if (left.previous >= 0) push(left.previous);
    push(top.at);
  }
  for (int32_t at = 0; at >= 0 && at < count; at = symbols[at].next) ids->push_back(symbols[at].id);
}

}  // namespace lockstep::text
