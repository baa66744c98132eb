#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

// LOCKSTEP_CHECK states an invariant of our own code. It is on in every build type: a process that
// has lost an invariant must stop before it sends wrong bits. Data of a client or a peer is never
// checked this way; it gets an absl::Status.
namespace lockstep::base {

// Streams what the caller adds after the macro, then ends the process.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const std::string& condition) {
    stream_ << file << ":" << line << ": check failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", stream_.str().c_str());
    std::fflush(stderr);
    std::abort();
  }
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

// Text of both operands when `a op b` does not hold, empty when it does.
template <typename A, typename B, typename Op>
std::string CompareOrDescribe(const A& a, const B& b, Op op, const char* text) {
  if (op(a, b)) return "";
  std::ostringstream out;
  out << text << " (" << a << " vs " << b << ")";
  return out.str();
}

}  // namespace lockstep::base

#define LOCKSTEP_CHECK(condition) \
  while (!(condition)) ::lockstep::base::CheckFailure(__FILE__, __LINE__, #condition).stream()

// A loop instead of an `if`, so that an `else` after the macro cannot bind to it; it never turns.
#define LOCKSTEP_CHECK_OP_(a, b, op)                                                        \
  for (const std::string lockstep_check_text_ = ::lockstep::base::CompareOrDescribe(        \
           (a), (b), [](const auto&x, const auto&y) { return x op y; }, #a " " #op " " #b); \
       !lockstep_check_text_.empty();)                                                      \
  ::lockstep::base::CheckFailure(__FILE__, __LINE__, lockstep_check_text_).stream()

#define LOCKSTEP_CHECK_EQ(a, b) LOCKSTEP_CHECK_OP_(a, b, ==)
#define LOCKSTEP_CHECK_NE(a, b) LOCKSTEP_CHECK_OP_(a, b, !=)
#define LOCKSTEP_CHECK_LE(a, b) LOCKSTEP_CHECK_OP_(a, b, <=)
#define LOCKSTEP_CHECK_LT(a, b) LOCKSTEP_CHECK_OP_(a, b, <)
#define LOCKSTEP_CHECK_GE(a, b) LOCKSTEP_CHECK_OP_(a, b, >=)
#define LOCKSTEP_CHECK_GT(a, b) LOCKSTEP_CHECK_OP_(a, b, >)
