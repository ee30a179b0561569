// A table for people: columns as wide as their widest cell, counted in characters.
#pragma once
#include <string>
#include <vector>

namespace carrel {

class Table {
 public:
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  /// A line a row; the last column is not filled up.
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace carrel
