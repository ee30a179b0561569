#include "app/observe/metrics.h"

#include <gtest/gtest.h>

#include <clocale>

#include "base/env.h"

namespace carrel {
namespace {

TEST(Metrics, TextIsWellFormedInACommaLocale) {
  std::setlocale(LC_ALL, "de_DE.UTF-8");  // where it exists; the output must not care
  Metrics m;
  m.add("carrel_requests_total", {{"tenant", "a\"b\\c\nd"}, {"route", "/x"}, {"status", "200"}});
  m.set("carrel_tier_watermark_ratio", {{"tier", "vram"}}, 0.5);
  m.observe("carrel_ttft_seconds", 0.3);
  const std::string text = m.prometheus();
  EXPECT_NE(text.find("carrel_requests_total{tenant=\"a\\\"b\\\\c\\nd\",route=\"/x\",status=\"200\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("carrel_tier_watermark_ratio{tier=\"vram\"} 0.5\n"), std::string::npos);
  EXPECT_NE(text.find("carrel_ttft_seconds_bucket{le=\"0.25\"} 0\n"), std::string::npos);
  EXPECT_NE(text.find("carrel_ttft_seconds_bucket{le=\"0.5\"} 1\n"), std::string::npos);
  EXPECT_NE(text.find("carrel_ttft_seconds_count 1\n"), std::string::npos);
}

TEST(Metrics, TheHandbookHasTheTable) {
  EXPECT_EQ(*read_file(Env::real(), "docs/metrics.md"), metrics_markdown());
}

TEST(Metrics, TenantLabelsAreBounded) {
  Metrics m;
  for (int i = 0; i < 1000; i++) m.add("carrel_requests_total", {{"tenant", "t" + std::to_string(i)}});
  const std::string text = m.prometheus();
  EXPECT_NE(text.find("carrel_requests_total{tenant=\"other\"} 800\n"), std::string::npos);
}

TEST(Metrics, QuantilesComeFromBuckets) {
  Metrics m;
  for (int i = 0; i < 99; i++) m.observe("carrel_ttft_seconds", 0.02);
  m.observe("carrel_ttft_seconds", 7);
  EXPECT_EQ(m.quantile("carrel_ttft_seconds", 0.5), 0.025);
  EXPECT_EQ(m.quantile("carrel_ttft_seconds", 0.999), 10);
  EXPECT_EQ(m.quantile("carrel_queue_seconds", 0.5), 0);
}

}  // namespace
}  // namespace carrel
