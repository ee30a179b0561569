// Counters and histograms of the process, and their Prometheus text. Names are API (docs/metrics.md lists them from this table).
//
// Threads: all methods from any thread. Labels: a tenant label is capped at 200 values, the rest counts as "other".
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carrel {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricInfo {
  std::string_view name;
  MetricType type;
  std::string_view help;
};
std::span<const MetricInfo> metric_table();
/// docs/metrics.md.
std::string metrics_markdown();

using Labels = std::vector<std::pair<std::string, std::string>>;

class Metrics {
 public:
  /// The name must be in the table; a wrong one is a fault of the program and aborts.
  void add(std::string_view counter, const Labels& labels, double amount = 1);
  void set(std::string_view gauge_or_counter, const Labels& labels, double value);
  void observe(std::string_view histogram, double seconds);
  /// Quantile from the buckets (upper bound of the bucket that holds it); 0 without samples.
  double quantile(std::string_view histogram, double q) const;
  std::string prometheus() const;

  /// Upper bounds in seconds.
  static constexpr std::array<double, 16> kBuckets{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};

 private:
  struct Histogram {
    std::array<uint64_t, kBuckets.size() + 1> counts{};
    double sum = 0;
  };
  std::string key(const Labels& labels);

  mutable std::mutex mu_;  // guards all below
  std::map<std::string, std::map<std::string, double>, std::less<>> values_;
  std::map<std::string, Histogram, std::less<>> histograms_;
  std::set<std::string> tenants_;
};

}  // namespace carrel
