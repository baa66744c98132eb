#include "services/text/added_token_splitter.h"

#include <algorithm>
#include <utility>

#include "services/text/utf8.h"

namespace lockstep::text {
namespace {

// Unicode's property White_Space.
bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

size_t WhiteSpaceAtStart(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Unit unit = ReadUtf8Unit(text.substr(at));
    if (!IsWhiteSpace(unit.code_point)) break;
    at += unit.size_bytes;
  }
  return at;
}

size_t WhiteSpaceAtEnd(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsWhiteSpace(ReadUtf8Unit(text.substr(begin, end - begin)).code_point)) break;
    end = begin;
  }
  return text.size() - end;
}

}  // namespace

AddedTokenSplitter::AddedTokenSplitter(std::vector<AddedToken> tokens)
    : tokens_(std::move(tokens)), token_of_node_(1, kNoToken) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    uint32_t node = 0;
    for (const char c : tokens_[i].content) {
      const uint64_t edge = (uint64_t{node} << 8) | static_cast<uint8_t>(c);
      const auto [it, is_new] = edges_.emplace(edge, token_of_node_.size());
      if (is_new) token_of_node_.push_back(kNoToken);
      node = it->second;
    }
    token_of_node_[node] = static_cast<int32_t>(i);
    begins_token_[static_cast<uint8_t>(tokens_[i].content[0])] = true;
  }
}

AddedTokenSplitter::Found AddedTokenSplitter::Longest(std::string_view text) const {
  Found found;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto edge = edges_.find((uint64_t{node} << 8) | static_cast<uint8_t>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_of_node_[node] != kNoToken) found = {token_of_node_[node], i + 1};
  }
  return found;
}

void AddedTokenSplitter::Split(std::string_view text, std::vector<Piece>* pieces) const {
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    if (!begins_token_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const Found found = Longest(text.substr(at));
    if (found.size_bytes == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[found.token];
    size_t begin = std::max(at, done);
    size_t end = at + found.size_bytes;
    if (token.strips_left) begin -= WhiteSpaceAtEnd(text.substr(done, begin - done));
    if (token.strips_right) end += WhiteSpaceAtStart(text.substr(end));
    if (done < begin) pieces->push_back({text.substr(done, begin - done)});
    pieces->push_back({text.substr(begin, end - begin), token.id});
    at += found.size_bytes;
    done = std::max(done, end);
  }
  if (done < text.size()) pieces->push_back({text.substr(done)});
}

}  // namespace lockstep::text
