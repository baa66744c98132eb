#include "kernels/cuda/linear/certificate.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr char kFirstLine[] = "lockstep linear certificates 2";

// A line is a word and fields separated by single spaces; what may hold spaces comes last.
class Fields {
 public:
  explicit Fields(std::string_view line) : rest_(line) { word_ = Next(); }

  std::string_view word() const { return word_; }
  std::string_view rest() const { return rest_; }
  bool good() const { return good_; }

  template <typename T>
  void Read(T& value) {
    int64_t number = 0;
    const std::string_view text = Next();
    good_ = good_ && absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number);
    value = static_cast<T>(number);
  }
  void Read(double& value) {
    const std::string_view text = Next();
    good_ = good_ && absl::SimpleAtod(absl::string_view(text.data(), text.size()), &value);
  }
  void ReadHex(uint64_t& value) {
    const std::string_view text = Next();
    good_ = good_ && absl::SimpleHexAtoi(absl::string_view(text.data(), text.size()), &value);
  }
  void Read(std::string& value) { value = std::string(Next()); }

 private:
  std::string_view Next() {
    const size_t space = rest_.find(' ');
    const std::string_view field = rest_.substr(0, space);
    rest_ = space == std::string_view::npos ? std::string_view() : rest_.substr(space + 1);
    return field;
  }

  std::string_view rest_;
  std::string_view word_;
  bool good_ = true;
};

std::string Text(const LinearShape& shape) {
  return absl::StrCat(shape.outputs, " ", shape.inputs, " ", shape.segments, " ",
                      static_cast<int>(shape.output), " ", static_cast<int>(shape.bias), " ",
                      shape.x_stride, " ", shape.y_stride);
}

void Read(Fields& fields, LinearShape& shape) {
  fields.Read(shape.outputs);
  fields.Read(shape.inputs);
  fields.Read(shape.segments);
  fields.Read(shape.output);
  fields.Read(shape.bias);
  fields.Read(shape.x_stride);
  fields.Read(shape.y_stride);
}

std::string Text(const AlgorithmTraits& traits) {
  return absl::StrCat(absl::StrCat(static_cast<int>(traits.engine), " ", traits.id, " ",
                                   traits.tile, " ", traits.stages, " ", traits.split_k, " "),
                      traits.reduction_scheme, " ", traits.swizzle, " ", traits.custom, " ",
                      traits.inner_shape, " ", traits.cluster_shape);
}

void Read(Fields& fields, AlgorithmTraits& traits) {
  fields.Read(traits.engine);
  fields.Read(traits.id);
  fields.Read(traits.tile);
  fields.Read(traits.stages);
  fields.Read(traits.split_k);
  fields.Read(traits.reduction_scheme);
  fields.Read(traits.swizzle);
  fields.Read(traits.custom);
  fields.Read(traits.inner_shape);
  fields.Read(traits.cluster_shape);
}

void AppendTo(std::string& text, const Certificate& certificate) {
  absl::StrAppend(&text, "certificate ", Text(certificate.shape), " ", certificate.rows, " ",
                  certificate.workspace_bytes, " ", certificate.offered, " ");
  absl::StrAppendFormat(&text, "%.17g %s", certificate.microseconds, Text(certificate.traits));
  for (const uint64_t word : certificate.algorithm) absl::StrAppendFormat(&text, " %x", word);
  absl::StrAppend(&text, "\n");
  for (const KernelNode& node : certificate.kernels) {
    absl::StrAppend(&text, "kernel ", node.grid[0], " ", node.grid[1], " ", node.grid[2], " ");
    absl::StrAppend(&text, node.block[0], " ", node.block[1], " ", node.block[2], " ");
    absl::StrAppend(&text, node.shared_bytes, " ", node.name, "\n");
  }
}

Certificate ReadCertificate(Fields& fields) {
  Certificate certificate;
  Read(fields, certificate.shape);
  fields.Read(certificate.rows);
  fields.Read(certificate.workspace_bytes);
  fields.Read(certificate.offered);
  fields.Read(certificate.microseconds);
  Read(fields, certificate.traits);
  for (uint64_t& word : certificate.algorithm) fields.ReadHex(word);
  return certificate;
}

KernelNode ReadKernel(Fields& fields) {
  KernelNode node;
  for (unsigned& size : node.grid) fields.Read(size);
  for (unsigned& size : node.block) fields.Read(size);
  fields.Read(node.shared_bytes);
  node.name = std::string(fields.rest());
  return node;
}

std::string DigestOf(std::string_view text) {
  return base::Hasher().Bytes(text).Finish().ToString();
}

}  // namespace

std::string CertificateTable::ToText() const {
  std::string text =
      absl::StrCat(kFirstLine, "\nenvironment ", environment_.multiprocessors, " ",
                   environment_.library_version, " ", environment_.library_digest, " ",
                   environment_.own_kernels_digest, " ", environment_.gpu, "\n");
  for (const Certificate& certificate : certificates_) AppendTo(text, certificate);
  for (const Refusal& refusal : refusals_) {
    absl::StrAppend(&text, "refused ", Text(refusal.shape), " ", refusal.rows, " ",
                    refusal.differing, " ", refusal.compared, " ");
    absl::StrAppend(&text, Text(refusal.traits), "\n");
  }
  absl::StrAppend(&text, "digest ", DigestOf(text), "\n");
  return text;
}

absl::StatusOr<CertificateTable> CertificateTable::FromText(std::string_view text) {
  const size_t last = text.rfind("digest ");
  if (text.substr(0, sizeof(kFirstLine) - 1) != kFirstLine || last == std::string_view::npos ||
      text.substr(last) != absl::StrCat("digest ", DigestOf(text.substr(0, last)), "\n")) {
    return absl::DataLossError("certificates: the text was cut, changed, or is another format");
  }
  CertificateTable table({});
  int number = 0;
  const std::string_view body = text.substr(0, last);
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(body.data(), body.size()), '\n', absl::SkipEmpty())) {
    if (++number == 1) continue;
    Fields fields(std::string_view(part.data(), part.size()));
    if (fields.word() == "environment") {
      CertificateEnvironment& environment = table.environment_;
      fields.Read(environment.multiprocessors);
      fields.Read(environment.library_version);
      fields.Read(environment.library_digest);
      fields.Read(environment.own_kernels_digest);
      environment.gpu = std::string(fields.rest());
    } else if (fields.word() == "certificate") {
      table.certificates_.push_back(ReadCertificate(fields));
    } else if (fields.word() == "kernel" && !table.certificates_.empty()) {
      table.certificates_.back().kernels.push_back(ReadKernel(fields));
    } else if (fields.word() == "refused") {
      Refusal refusal;
      Read(fields, refusal.shape);
      fields.Read(refusal.rows);
      fields.Read(refusal.differing);
      fields.Read(refusal.compared);
      Read(fields, refusal.traits);
      table.refusals_.push_back(refusal);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("certificates: line ", number));
    }
    if (!fields.good()) {
      return absl::InvalidArgumentError(absl::StrCat("certificates: a number in line ", number));
    }
  }
  return table;
}

absl::StatusOr<CertificateTable> CertificateTable::Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("no certificates in ", path));
  std::ostringstream text;
  text << file.rdbuf();
  return FromText(text.str());
}

absl::Status CertificateTable::Save(const std::string& path) const {
  const auto refused = [&] {
    return absl::UnavailableError(absl::StrCat("cannot write certificates to ", path));
  };
  // A file of its own: workers that share the path may all be writing theirs.
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int descriptor = mkstemp(temporary.data());
  if (descriptor < 0) return refused();
  const bool readable = fchmod(descriptor, 0644) == 0;  // By workers of other users.
  close(descriptor);
  std::ofstream file(temporary, std::ios::binary);
  file << ToText();
  file.close();
  if (readable && file && std::rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  std::remove(temporary.c_str());
  return refused();
}

void CertificateTable::Remove(const LinearShape& shape) {
  std::erase_if(certificates_, [&](const auto& entry) { return entry.shape == shape; });
  std::erase_if(refusals_, [&](const auto& entry) { return entry.shape == shape; });
}

std::vector<const Certificate*> CertificateTable::Ladder(const LinearShape& shape) const {
  std::vector<const Certificate*> ladder;
  for (const Certificate& certificate : certificates_) {
    if (certificate.shape == shape) ladder.push_back(&certificate);
  }
  std::sort(ladder.begin(), ladder.end(),
            [](const auto* a, const auto* b) { return a->rows < b->rows; });
  return ladder;
}

}  // namespace lockstep::kernels::cuda
