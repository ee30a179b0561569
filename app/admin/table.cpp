#include "app/admin/table.h"

#include <algorithm>

namespace carrel {

namespace {

size_t n_characters(const std::string& s) {
  return static_cast<size_t>(std::count_if(s.begin(), s.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

std::string Table::text() const {
  std::vector<size_t> width;
  for (const auto& r : rows_) {
    width.resize(std::max(width.size(), r.size()));
    for (size_t i = 0; i < r.size(); i++) width[i] = std::max(width[i], n_characters(r[i]));
  }
  std::string out;
  for (const auto& r : rows_) {
    std::string line;
    for (size_t i = 0; i < r.size(); i++) line += r[i] + std::string(i + 1 < r.size() ? width[i] - n_characters(r[i]) + 2 : 0, ' ');
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

}  // namespace carrel
