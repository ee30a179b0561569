// Which values each node reads and writes: the one place that the runner, and whoever else walks a graph, asks.
#pragma once
#include <variant>

#include "engine/model/graph.h"

namespace carrel {

/// Calls read(ValueId) for every operand, then write(ValueId) for every result. In-place nodes do both with the same value.
template <class Read, class Write>
struct ValueVisitor {
  Read read;
  Write write;

  void operator()(const node::Embed& n) { write(n.y); }
  void operator()(const node::Linear& n) {
    read(n.x);
    write(n.y);
  }
  void operator()(const node::RmsNorm& n) {
    read(n.x);
    write(n.y);
  }
  void operator()(const node::Rope& n) { in_place(n.x); }
  void operator()(const node::Gated& n) {
    read(n.gate);
    read(n.up);
    write(n.y);
  }
  void operator()(const node::Add& n) {
    read(n.a);
    read(n.b);
    write(n.y);
  }
  void operator()(const node::Softcap& n) { in_place(n.x); }
  void operator()(const node::Repeat& n) {
    read(n.x);
    write(n.y);
  }
  void operator()(const node::GatherOutputs& n) {
    read(n.x);
    write(n.y);
  }
  void operator()(const node::Route& n) {
    read(n.scores);
    write(n.ids);
    write(n.weights);
  }
  void operator()(const node::Experts& n) {
    read(n.x);
    read(n.ids);
    read(n.weights);
    write(n.y);
  }
  void operator()(const node::StoreRows& n) { read(n.x); }
  void operator()(const node::Attention& n) {
    read(n.q);
    write(n.y);
  }
  void operator()(const node::Compress& n) {
    read(n.c);
    read(n.z);
  }
  void operator()(const node::IndexTopk& n) {
    read(n.q);
    read(n.w);
    write(n.selected);
  }
  void operator()(const node::SparseAttention& n) {
    read(n.q);
    if (n.selected != kNoValue) read(n.selected);
    write(n.y);
  }
  void operator()(const node::Scale& n) { in_place(n.x); }
  void operator()(const node::GateRows& n) {
    read(n.g);
    read(n.x);
    write(n.y);
  }
  void operator()(const node::ShortConv& n) {
    read(n.x);
    write(n.y);
  }
  void operator()(const node::DeltaScan& n) {
    read(n.qkv);
    read(n.a);
    read(n.b);
    write(n.y);
  }
  void operator()(const node::SsmScan& n) {
    read(n.xbc);
    read(n.dt);
    write(n.y);
  }
  void operator()(const node::HcPre& n) {
    read(n.x);
    write(n.y);
    write(n.post);
    write(n.comb);
  }
  void operator()(const node::HcPost& n) {
    read(n.f);
    read(n.x);
    read(n.post);
    read(n.comb);
    write(n.y);
  }
  void operator()(const node::HcHead& n) {
    read(n.x);
    write(n.y);
  }

 private:
  void in_place(ValueId x) {
    read(x);
    write(x);
  }
};

template <class Read, class Write>
void visit_values(const Node& node, Read read, Write write) {
  std::visit(ValueVisitor<Read, Write>{read, write}, node);
}

}  // namespace carrel
