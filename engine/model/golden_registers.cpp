// Registers of recurrent layers against vectors: convolution columns, delta and Mamba2 states. See golden_run.h.
#include <cmath>
#include <set>

#include "engine/model/golden_run.h"

namespace carrel {

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
  }
  return worst;
}

std::vector<int32_t> longest_prompt(const VectorFile& file) {
  std::string longest;
  for (const std::string& name : file.names()) {
    if (name.starts_with("prompt.") && name.ends_with(".ids") && name > longest) longest = name;
  }
  return file.ints(longest);
}

namespace {

/// The layer number of a value "layers.N.…"; -1 for another.
int layer_of(const std::string& value) {
  return value.starts_with("layers.") ? std::atoi(value.c_str() + 7) : -1;
}

std::vector<float> all_rows(const PlainSequence& sequence, const Registers& r) {
  std::vector<float> out;
  for (int64_t i = 0; i < r.layout.rows_per_page; ++i) {
    const std::vector<float> row = sequence.register_row(r, i);
    out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

/// [n_blocks][n_rows][n_cols] to [n_blocks][n_cols][n_rows].
std::vector<float> transposed(const std::vector<float>& x, size_t n_blocks, size_t n_rows, size_t n_cols) {
  std::vector<float> out(x.size());
  for (size_t b = 0; b < n_blocks; ++b)
    for (size_t r = 0; r < n_rows; ++r)
      for (size_t c = 0; c < n_cols; ++c) out[(b * n_cols + c) * n_rows + r] = x[(b * n_rows + r) * n_cols + c];
  return out;
}

/// Vectors keep K columns, of which the oldest is never needed again; registers keep the others, as rows.
std::vector<float> without_oldest(const std::vector<float>& columns, size_t kernel) {
  std::vector<float> out;
  for (size_t i = 0; i < columns.size(); ++i)
    if (i % kernel != 0) out.push_back(columns[i]);
  return out;
}

class RegisterCheck {
 public:
  RegisterCheck(const GoldenModel& model, const GoldenVectors& vectors) : m_(model), v_(vectors) {}

  std::vector<RegisterError> run() {
    const std::vector<int32_t> prompt = longest_prompt(*v_.file);
    for (const int32_t n : v_.file->ints("state.pos")) {
      if (v_.registers.empty() || n > static_cast<int32_t>(prompt.size())) break;
      const std::span<const int32_t> ids(prompt.data(), static_cast<size_t>(n));
      PlainSequence whole(&m_.graph.state), single(&m_.graph.state);
      const int one[] = {n};
      run_tokens(m_, ids, one, {}, whole);
      run_tokens(m_, ids, {}, {}, single);
      for (const PlainSequence* s : {&whole, &single}) compare(n, *s, s == &whole ? "" : " token by token");
    }
    for (const std::string& name : v_.file->names()) {
      const bool is_register = name.starts_with("state.") && (name.ends_with(".conv") || name.ends_with(".recurrent"));
      if (is_register && !v_.registers.empty() && !compared_.contains(name))
        out_.push_back({name + ": the model has no such layer", INFINITY});
    }
    return std::move(out_);
  }

 private:
  void compare(int n, const PlainSequence& sequence, const char* how) {
    char prefix[32];
    std::snprintf(prefix, sizeof prefix, "state.%03d.layer", n);
    const auto check = [&](ValueId y, const char* kind, const auto& got_like) {
      const std::string key = prefix + std::to_string(layer_of(m_.graph.values[static_cast<size_t>(y)].name)) + "." + kind;
      const auto bound = v_.registers.find(kind);
      compared_.insert(key);
      const double limit = bound == v_.registers.end() ? v_.tight : bound->second;
      out_.push_back({key + how, got_like(v_.file->floats(key)) / limit});
    };
    for (const Node& node : m_.graph.nodes) {
      if (const auto* c = std::get_if<node::ShortConv>(&node)) {
        check(c->y, "conv", [&](const std::vector<float>& want) {
          const auto k = static_cast<size_t>(c->args.kernel), channels = static_cast<size_t>(c->args.n_channels);
          return largest_difference(transposed(all_rows(sequence, c->columns), 1, k - 1, channels), without_oldest(want, k));
        });
      } else if (const auto* d = std::get_if<node::DeltaScan>(&node)) {
        check(d->y, "recurrent", [&](const std::vector<float>& want) { return largest_difference(all_rows(sequence, d->state), want); });
      } else if (const auto* s = std::get_if<node::SsmScan>(&node)) {
        check(s->y, "recurrent", [&](const std::vector<float>& want) {
          const auto heads = static_cast<size_t>(s->args.n_heads), states = static_cast<size_t>(s->args.state_dim);
          const auto dim = static_cast<size_t>(s->args.head_dim);
          return largest_difference(transposed(all_rows(sequence, s->state), heads, states, dim), want);
        });
      }
    }
  }

  const GoldenModel& m_;
  const GoldenVectors& v_;
  std::vector<RegisterError> out_;
  std::set<std::string> compared_;
};

}  // namespace

std::vector<RegisterError> compare_registers(const GoldenModel& model, const GoldenVectors& vectors) {
  return RegisterCheck(model, vectors).run();
}

}  // namespace carrel
