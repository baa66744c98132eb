#include "services/client/metrics_page.h"

#include "common/metrics/exposer.h"
#include "common/metrics/metric.h"
#include "gtest/gtest.h"

namespace lockstep::client {
namespace {

constexpr char kPage[] =
    "# HELP jobs_total Jobs.\n"
    "# TYPE jobs_total counter\n"
    "jobs_total{code=\"OK\"} 3\n"
    "jobs_total{code=\"UNAVAILABLE\"} 4\n"
    "jobs_total_more 100\n"
    "waiting 1.5\n"
    "sizes_bucket{le=\"1\"} 2\n"
    "sizes_bucket{le=\"2\"} 5\n"
    "sizes_bucket{le=\"+Inf\"} 9\n"
    "sizes_sum 40\n"
    "sizes_count 9\n";

TEST(MetricsPageTest, SumsOverLabelsButNotOverLongerNames) {
  const MetricsPage page = MetricsPage::Parse(kPage);
  EXPECT_EQ(page.Sum("jobs_total"), 7);
  EXPECT_EQ(page.Sum("waiting"), 1.5);
  EXPECT_EQ(page.Sum("absent"), 0);
}

TEST(MetricsPageTest, CountsObservationsAboveABound) {
  const MetricsPage page = MetricsPage::Parse(kPage);
  EXPECT_EQ(page.CountAbove("sizes", 1), 7);
  EXPECT_EQ(page.CountAbove("sizes", 2), 4);
  EXPECT_EQ(page.CountAbove("absent", 1), 0);
}

TEST(MetricsPageTest, SkipsWhatIsNoSample) {
  const MetricsPage page = MetricsPage::Parse("\n\nnonsense\nname value\nok 1");
  EXPECT_EQ(page.Sum("ok"), 1);
  EXPECT_EQ(page.Sum("name"), 0);
}

TEST(MetricsPageTest, ReadsARealEndpoint) {
  metrics::Registry registry;
  metrics::Counter counter(&registry, "lockstep_test_things_total", "Things.");
  counter.Increment(5);
  const auto exposer = metrics::Exposer::Start({.address = "127.0.0.1:0"}, registry).value();
  const auto page = MetricsPage::Fetch("127.0.0.1:" + std::to_string(exposer->port()));
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_EQ(page->Sum("lockstep_test_things_total"), 5);
}

TEST(MetricsPageTest, SaysWhereNobodyAnswers) {
  const auto page = MetricsPage::Fetch("127.0.0.1:1");
  EXPECT_EQ(page.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(page.status().message().find("127.0.0.1:1"), absl::string_view::npos);
}

}  // namespace
}  // namespace lockstep::client
