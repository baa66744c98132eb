#include "services/scheduler/fingerprint_gate.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lockstep::scheduler {
namespace {

std::map<std::string, std::string> ByName(const Contract& contract) {
  std::map<std::string, std::string> fields;
  for (const ContractField& field : contract.fields) fields[field.name] = field.value;
  fields["weight_version"] = absl::StrCat(contract.weight_version.value());
  fields["weights_digest"] = contract.weights_digest;
  return fields;
}

// One text a field that differs or is missing on one side, ascending by name.
std::vector<std::string> Differences(const Contract& cluster, const Contract& offered) {
  const std::map<std::string, std::string> ours = ByName(cluster);
  const std::map<std::string, std::string> theirs = ByName(offered);
  const auto value = [](const std::map<std::string, std::string>& fields, const std::string& name) {
    const auto it = fields.find(name);
    return it == fields.end() ? std::string("nothing") : absl::StrCat("\"", it->second, "\"");
  };
  std::map<std::string, std::string> names = ours;
  names.insert(theirs.begin(), theirs.end());
  std::vector<std::string> differences;
  for (const auto& [name, unused] : names) {
    const std::string a = value(ours, name);
    const std::string b = value(theirs, name);
    if (a != b) {
      differences.push_back(absl::StrCat(name, " is ", b, " here, ", a, " in the cluster"));
    }
  }
  return differences;
}

}  // namespace

absl::Status FingerprintGate::Compare(const Contract& offered) const {
  if (!contract_.has_value()) return absl::OkStatus();
  const std::vector<std::string> differences = Differences(*contract_, offered);
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the worker has another contract: ", absl::StrJoin(differences, "; ")));
}

absl::StatusOr<FingerprintGate::Decision> FingerprintGate::Decide(const Contract& offered,
                                                                  bool may_replace) const {
  if (!contract_.has_value()) return Decision::kFirst;
  absl::Status status = Compare(offered);
  if (status.ok()) return Decision::kSame;
  if (!may_replace) return status;
  return Decision::kReplaces;
}

}  // namespace lockstep::scheduler
