// What TMA is told of a call's tensors: boxes of 64 tokens and 64 channels of a head, all of a row's boxes or one.
#pragma once
#include "boxes.cuh"

namespace {

struct Maps {
  CUtensorMap q, k, v, slice_of_v, g, slice_of_g, dv, slice_of_dv;  // g: of do. dv: of Problem::writes
};

}  // namespace
