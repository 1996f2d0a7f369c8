// Products of a warpgroup, by its warps one by one: each has 16 of the 64 rows, and none waits for another.
//
// Shared operands are read when the first lane asks for a product. When the first lane has waited for it they must be
// the same still, and so must every lane's registers. In between the sums lie elsewhere: their registers hold NaNs.
#pragma once
#include <deque>
#include <memory>
#include <utility>

#include "fragments.h"

struct Operand {
  uint32_t start, leading, stride;  // bytes; from core to core along k, and from eight rows to the next
  bool swizzled;
};

inline Operand read_descriptor(uint64_t bits) {
  constexpr uint64_t kField = 0x3fff, kKnown = kField | kField << 16 | kField << 32 | uint64_t{3} << 62;
  const auto field = [bits](int shift) { return static_cast<uint32_t>(bits >> shift & kField) << 4; };
  const Operand operand{field(0), field(16), field(32), bits >> 62 == 1};
  require((bits & ~kKnown) == 0 && bits >> 62 <= 1, "a descriptor of a kind that is not emulated");
  const bool whole = !operand.swizzled || swizzle_128(operand.start) == operand.start;
  require(whole, "a swizzled operand that does not start at the first of eight rows");
  return operand;
}

// What all lanes, and all warps of a warpgroup, have to say alike.
struct Request {
  uint64_t left, right;
  int columns;
  bool left_shared, transposed, accumulate;
  Type type;
  bool left_transposed = false;
  int used = columns;  // of these, the first; the others stay as they are
  bool operator==(const Request&) const = default;
};

struct Piece {
  uint32_t at;
  uint16_t numbers[8];
};

struct Sums {
  float numbers[16][64];
  float* registers[kLanes] = {};
  int under_way[kLanes] = {};  // products, as a lane sees it
};

struct Product {
  Request request;
  std::shared_ptr<Sums> sums;
  std::vector<Piece> pieces;
  float left[16][16], right[16][64];
  const uint32_t* registers[kLanes];  // of the left operand
  uint32_t given[kLanes][4];          // what they held
  int asked = 0;                      // lanes
  bool finished = false;              // for one lane at least
};

struct LaneProducts {
  bool fenced = false;
  size_t asked = 0;
  std::deque<std::shared_ptr<Product>> under_way;
  size_t open = 0;            // of them, not committed
  std::deque<size_t> groups;  // how many each has
};

struct WarpProducts {
  LaneProducts lanes[kLanes];
  std::deque<std::shared_ptr<Product>> beginning;  // some lanes are still to ask for them
  size_t begun = 0;                                // those before
};

inline std::vector<WarpProducts> warp_products;
inline std::vector<std::vector<Request>> requests;  // of each warpgroup

inline void prepare_products(int threads) {
  warp_products.assign(threads / kLanes, {});
  requests.assign(threads / 128, {});
}

inline void check_no_products() {
  for (const WarpProducts& warp : warp_products) {
    for (const LaneProducts& lane : warp.lanes) require(lane.under_way.empty(), "exit with products under way");
  }
}

// --- operands ---------------------------------------------------------------------------------------------------

inline Piece read_piece(Product& product, uint32_t at) {
  Piece piece{at, {}};
  std::memcpy(piece.numbers, fenced_piece(at, "wgmma"), sizeof piece.numbers);
  product.pieces.push_back(piece);
  return piece;
}

// Numbers 8 part to 8 part + 7, along k, of a row.
inline Piece read_along_k(Product& product, const Operand& x, int row, int part) {
  const uint32_t eight_rows = x.start + row / 8 * x.stride;
  if (!x.swizzled) return read_piece(product, eight_rows + part * x.leading + row % 8 * 16);
  return read_piece(product, swizzle_128(eight_rows + row % 8 * 128 + part * 16));
}

inline void read_shared_left(Product& product) {
  const Operand x = read_descriptor(product.request.left);
  const int first = running % 128 / kLanes * 16;
  if (product.request.left_transposed) {  // a row is a step of k
    require(x.swizzled, "a transposed operand without swizzle is not emulated");
    for (int k = 0; k < 16; ++k) {
      for (int part = 0; part < 2; ++part) {
        const uint32_t at = x.start + k / 8 * x.stride + k % 8 * 128 + (first / 8 + part) * 16;
        const Piece piece = read_piece(product, swizzle_128(at));
        for (int e = 0; e < 8; ++e) product.left[8 * part + e][k] = to_float(piece.numbers[e], product.request.type);
      }
    }
    return;
  }
  for (int row = 0; row < 16; ++row) {
    for (int part = 0; part < 2; ++part) {
      const Piece piece = read_along_k(product, x, first + row, part);
      for (int e = 0; e < 8; ++e) product.left[row][8 * part + e] = to_float(piece.numbers[e], product.request.type);
    }
  }
}

inline void read_right(Product& product) {
  const Request& request = product.request;
  const Operand x = read_descriptor(request.right);
  for (int column = 0; column < request.used && !request.transposed; ++column) {
    for (int part = 0; part < 2; ++part) {
      const Piece piece = read_along_k(product, x, column, part);
      for (int e = 0; e < 8; ++e) product.right[8 * part + e][column] = to_float(piece.numbers[e], request.type);
    }
  }
  if (!request.transposed) return;
  require(x.swizzled, "a transposed operand without swizzle is not emulated");
  for (int k = 0; k < 16; ++k) {
    for (int part = 0; part < request.columns / 8; ++part) {
      const uint32_t at = x.start + k / 8 * x.stride + k % 8 * 128 + part * 16;
      const Piece piece = read_piece(product, swizzle_128(at));
      for (int e = 0; e < 8; ++e) product.right[k][8 * part + e] = to_float(piece.numbers[e], request.type);
    }
  }
}

// --- the way of a product ---------------------------------------------------------------------------------------

inline WarpProducts& own_warp() { return warp_products[running / kLanes]; }
inline LaneProducts& own_products() { return own_warp().lanes[running % kLanes]; }

// Calls move(sum, register) for the sums that a lane has.
template <class Move>
void for_own_sums(const Product& product, Move move) {
  const int lane = running % kLanes;
  for (int i = 0; i < product.request.columns / 2; ++i) {
    const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    move(product.sums->numbers[row][column], product.sums->registers[lane][i]);
  }
}

// Sums that an earlier product is still adding to, or new ones.
inline std::shared_ptr<Sums> find_sums(const float* registers) {
  for (const auto& product : own_products().under_way) {
    if (product->sums->registers[running % kLanes] == registers) return product->sums;
  }
  return std::make_shared<Sums>();
}

inline std::shared_ptr<Product> find_product(const Request& request, const float* registers) {
  auto& all = requests[running / 128];
  const size_t i = own_products().asked++;
  if (i == all.size()) all.push_back(request);
  require(all[i] == request, "threads ask for different products");
  WarpProducts& warp = own_warp();
  if (i == warp.begun + warp.beginning.size()) {
    auto product = std::make_shared<Product>();
    product->request = request;
    product->sums = find_sums(registers);
    if (request.left_shared) read_shared_left(*product);
    read_right(*product);
    warp.beginning.push_back(product);
  }
  return warp.beginning[i - warp.begun];
}

inline void multiply_add(Product& product) {
  const Request& request = product.request;
  for (int row = 0; row < 16; ++row) {
    float(&sums)[64] = product.sums->numbers[row];
    if (!request.accumulate) std::fill_n(sums, request.columns, 0.f);
    for (int k = 0; k < 16; ++k) {
      const float left = product.left[row][k];
      for (int column = 0; column < request.used; ++column) sums[column] += left * product.right[k][column];
    }
  }
}

inline void give_left(Product& product, const uint32_t* registers) {
  const int lane = running % kLanes;
  product.registers[lane] = registers;
  std::copy_n(registers, 4, product.given[lane]);
  for (int i = 0; i < 8; ++i) {
    const int row = lane / 4 + i / 2 % 2 * 8, k = lane % 4 * 2 + i % 2 + i / 4 * 8;
    product.left[row][k] = to_float(half_of(registers[i / 2], i % 2), product.request.type);
  }
}

inline void ask_product(float* sums, const uint32_t* left, const Request& request) {
  LaneProducts& own = own_products();
  require(own.fenced, "wgmma without wgmma_fence");
  const std::shared_ptr<Product> product = find_product(request, sums);
  if (!request.left_shared) give_left(*product, left);
  const int lane = running % kLanes;
  if (product->sums->under_way[lane]++ == 0) {
    product->sums->registers[lane] = sums;
    for_own_sums(*product, [](float& kept, float& mine) { kept = std::exchange(mine, NAN); });
  }
  require(product->sums->registers[lane] == sums, "sums that are not those of the other lanes");
  own.under_way.push_back(product);
  ++own.open;
  if (++product->asked < kLanes) return;
  multiply_add(*product);
  own_warp().beginning.pop_front();
  ++own_warp().begun;
}

inline void finish_product(Product& product) {
  wait_until("wgmma", [&product] { return product.asked == kLanes; });
  const int lane = running % kLanes;
  for (const Piece& piece : product.pieces) {
    const bool same = std::memcmp(piece.numbers, shared_memory.bytes + piece.at, sizeof piece.numbers) == 0;
    require(product.finished || same, "an operand in shared memory has changed while its product was under way");
  }
  const uint32_t* given = product.given[lane];
  const bool same = product.request.left_shared || std::equal(given, given + 4, product.registers[lane]);
  require(same, "an operand in registers has changed while its product was under way");
  product.finished = true;
  if (--product.sums->under_way[lane] == 0) for_own_sums(product, [](float& kept, float& mine) { mine = kept; });
}

inline void wgmma_fence() { own_products().fenced = true; }

inline void wgmma_commit() { own_products().groups.push_back(std::exchange(own_products().open, 0)); }

template <int Pending>
void wgmma_wait() {
  LaneProducts& own = own_products();
  for (; own.groups.size() > Pending; own.groups.pop_front()) {
    for (size_t i = 0; i < own.groups.front(); ++i) {
      finish_product(*own.under_way.front());
      own.under_way.pop_front();
    }
  }
  own.fenced = false;  // what has landed may be written to: the next product needs a fence
}

// d [64, 2 Registers] (+)= a [64, 16] b [16, 2 Registers]
template <class E, int TransposedB, size_t Registers>
void wgmma(float (&d)[Registers], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  static_assert(Registers == 16 || Registers == 32);
  ask_product(d, a, {0, b, 2 * Registers, false, TransposedB != 0, accumulate != 0, kType<E>});
}

template <class E, size_t Registers>
void wgmma_shared(float (&d)[Registers], uint64_t a, uint64_t b, int accumulate) {
  static_assert(Registers == 16 || Registers == 32);
  ask_product(d, nullptr, {a, b, 2 * Registers, true, false, accumulate != 0, kType<E>});
}
