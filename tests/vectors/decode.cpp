// gdn_decode_k_last and gdn_decode_k_first in C++17, from definitions/gdn/README.md alone: no Python, no libraries.
//
//     g++ -std=c++17 -O2 -o decode decode.cpp
//     ./decode VECTORS OUTPUTS
//
// VECTORS is what `gdnspec vectors export` wrote; OUTPUTS is made, and gets a file for each workload.
// Arithmetic is float32 throughout. -DWRONG_HEADS takes the key head as h % num_k_heads: a judge must see it.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;

// --- JSON ---------------------------------------------------------------------------------------------------------

struct Json {
    enum Kind { Null, Bool, Number, String, Array, Object } kind = Null;
    bool boolean = false;
    double number = 0;
    std::string string;
    std::vector<Json> array;
    std::vector<std::pair<std::string, Json>> object;  // in the order of the file

    const Json& at(const std::string& key) const {
        for (const auto& [name, value] : object)
            if (name == key) return value;
        throw std::runtime_error("no key " + key);
    }

    std::vector<size_t> sizes() const {
        std::vector<size_t> result;
        for (const Json& item : array) result.push_back(static_cast<size_t>(item.number));
        return result;
    }
};

class Parser {
  public:
    explicit Parser(const std::string& text) : text_(text) {}

    Json parse() {
        Json value = element();
        space();
        if (at_ != text_.size()) fail("something after the end");
        return value;
    }

  private:
    const std::string& text_;
    size_t at_ = 0;

    [[noreturn]] void fail(const std::string& what) const {
        throw std::runtime_error("JSON: " + what + " at byte " + std::to_string(at_));
    }

    void space() {
        while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_] != '\0') ++at_;
    }

    char peek() {
        space();
        if (at_ == text_.size()) fail("ends too early");
        return text_[at_];
    }

    bool take(char c) {
        if (peek() != c) return false;
        ++at_;
        return true;
    }

    void expect(char c) {
        if (!take(c)) fail(std::string("not the expected ") + c);
    }

    bool word(const char* word) {
        size_t length = std::strlen(word);
        if (text_.compare(at_, length, word) != 0) return false;
        at_ += length;
        return true;
    }

    Json element() {
        Json value;
        char c = peek();
        if (c == '{') {
            value.kind = Json::Object;
            expect('{');
            if (take('}')) return value;
            do {
                if (peek() != '"') fail("a key is not a string");
                std::string key = quoted();
                expect(':');
                value.object.emplace_back(std::move(key), element());
            } while (take(','));
            expect('}');
        } else if (c == '[') {
            value.kind = Json::Array;
            expect('[');
            if (take(']')) return value;
            do value.array.push_back(element());
            while (take(','));
            expect(']');
        } else if (c == '"') {
            value.kind = Json::String;
            value.string = quoted();
        } else if (word("true")) {
            value.kind = Json::Bool;
            value.boolean = true;
        } else if (word("false")) {
            value.kind = Json::Bool;
        } else if (!word("null")) {
            char* end = nullptr;
            value.kind = Json::Number;
            value.number = std::strtod(text_.c_str() + at_, &end);
            if (end == text_.c_str() + at_) fail("not a value");
            at_ = static_cast<size_t>(end - text_.c_str());
        }
        return value;
    }

    std::string quoted() {
        std::string result;
        expect('"');
        for (;; ++at_) {
            if (at_ == text_.size()) fail("a string without an end");
            char c = text_[at_];
            if (c == '"') break;
            if (c != '\\') {
                result += c;
                continue;
            }
            if (++at_ == text_.size()) fail("a string without an end");
            switch (text_[at_]) {
                case 'n': result += '\n'; break;
                case 't': result += '\t'; break;
                case 'r': result += '\r'; break;
                case 'b': result += '\b'; break;
                case 'f': result += '\f'; break;
                case 'u': result += '?'; at_ += 4; break;  // only in texts for people
                default: result += text_[at_];
            }
        }
        ++at_;
        return result;
    }
};

// --- files and types ----------------------------------------------------------------------------------------------

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot read " + path.string());
    return {std::istreambuf_iterator<char>(file), {}};
}

float widen(uint16_t bits) {  // bfloat16: the upper half of a float32
    uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

uint16_t narrow(float value) {  // to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
    return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

struct Tensor {
    std::string dtype;  // BF16 or F32
    std::vector<size_t> shape;
    std::vector<float> values;

    size_t count() const {
        size_t result = 1;
        for (size_t size : shape) result *= size;
        return result;
    }
};

using Tensors = std::map<std::string, Tensor>;

Tensors read_safetensors(const fs::path& path) {
    std::string bytes = read_file(path);
    uint64_t length = 0;
    if (bytes.size() < 8) throw std::runtime_error(path.string() + " is cut short");
    std::memcpy(&length, bytes.data(), 8);
    if (length > bytes.size() - 8) throw std::runtime_error(path.string() + " is cut short");
    const char* data = bytes.data() + 8 + length;
    size_t held = bytes.size() - 8 - length;
    std::string header = bytes.substr(8, length);
    Tensors tensors;
    for (const auto& [name, entry] : Parser(header).parse().object) {
        if (name == "__metadata__") continue;
        Tensor tensor{entry.at("dtype").string, entry.at("shape").sizes(), {}};
        std::vector<size_t> offsets = entry.at("data_offsets").sizes();
        size_t width = tensor.dtype == "BF16" ? 2 : tensor.dtype == "F32" ? 4 : 0;
        if (width == 0) throw std::runtime_error(name + ": no use for " + tensor.dtype);
        if (offsets.at(1) > held || offsets[1] - offsets[0] != width * tensor.count())
            throw std::runtime_error(name + ": offsets do not fit");
        tensor.values.resize(tensor.count());
        for (size_t i = 0; i < tensor.values.size(); ++i) {
            const char* from = data + offsets[0] + i * width;
            if (width == 4) {
                std::memcpy(&tensor.values[i], from, 4);
            } else {
                uint16_t bits;
                std::memcpy(&bits, from, 2);
                tensor.values[i] = widen(bits);
            }
        }
        tensors.emplace(name, std::move(tensor));
    }
    return tensors;
}

void write_safetensors(const fs::path& path, const Tensors& tensors) {
    std::string header, data;
    for (const auto& [name, tensor] : tensors) {
        size_t begin = data.size();
        for (float value : tensor.values) {
            char bytes[4];
            size_t width = tensor.dtype == "BF16" ? 2 : 4;
            uint16_t half = narrow(value);
            std::memcpy(bytes, width == 2 ? static_cast<const void*>(&half) : &value, width);
            data.append(bytes, width);
        }
        std::string shape;
        for (size_t size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
        header += (header.empty() ? "{\"" : ",\"") + name + "\":{\"dtype\":\"" + tensor.dtype + "\",\"shape\":[" + shape +
                  "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    uint64_t length = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), 8);
    file << header << data;
    if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

// --- the operator -------------------------------------------------------------------------------------------------

float softplus(float x) { return std::fmax(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// A head's vector, divided by its norm where that is asked for: the epsilon stands inside the root.
std::vector<float> vector_of(const Tensor& tensor, size_t row, size_t size, bool normalise) {
    auto first = tensor.values.begin() + static_cast<std::ptrdiff_t>(row * size);
    std::vector<float> x(first, first + static_cast<std::ptrdiff_t>(size));
    if (normalise) {
        float sum = 0;
        for (float value : x) sum += value * value;
        float factor = 1.0f / std::sqrt(sum + 1e-6f);
        for (float& value : x) value *= factor;
    }
    return x;
}

struct Call {
    size_t batch, q_heads, k_heads, v_heads, size;
    float scale;
    bool normalise, k_first;
};

Tensors decode(const Call& call, const Tensors& inputs) {
    const size_t D = call.size, H = call.v_heads;
    const auto value = [&](const char* name, size_t i) { return inputs.at(name).values[i]; };
    Tensor output{"BF16", {call.batch, 1, H, D}, std::vector<float>(call.batch * H * D)};
    Tensor state = inputs.at("state");
    for (size_t n = 0; n < call.batch; ++n) {
        for (size_t h = 0; h < H; ++h) {
#ifdef WRONG_HEADS
            const size_t qh = h % call.q_heads, kh = h % call.k_heads;
#else
            const size_t qh = h / (H / call.q_heads), kh = h / (H / call.k_heads);
#endif
            const size_t row = n * H + h;
            const std::vector<float> q = vector_of(inputs.at("q"), n * call.q_heads + qh, D, call.normalise);
            const std::vector<float> k = vector_of(inputs.at("k"), n * call.k_heads + kh, D, call.normalise);
            const std::vector<float> v = vector_of(inputs.at("v"), row, D, false);
            const float alpha =
                std::exp(-std::exp(value("A_log", h)) * softplus(value("a", row) + value("dt_bias", h)));
            const float beta = sigmoid(value("b", row));
            float* S = state.values.data() + row * D * D;
            const size_t across = call.k_first ? 1 : D, along = call.k_first ? D : 1;  // from value channel i, key j
            for (size_t i = 0; i < D; ++i) {
                float held = 0, read = 0;
                for (size_t j = 0; j < D; ++j) {
                    float& s = S[i * across + j * along];
                    s *= alpha;
                    held += s * k[j];
                }
                const float u = beta * (v[i] - held);
                for (size_t j = 0; j < D; ++j) {
                    float& s = S[i * across + j * along];
                    s += u * k[j];
                    read += s * q[j];
                }
                output.values[row * D + i] = call.scale * read;
            }
        }
    }
    return {{"output", output}, {"new_state", state}};
}

// --- one workload after the other ---------------------------------------------------------------------------------

int main(int argc, char** argv) try {
    if (argc != 3) throw std::runtime_error("decode VECTORS OUTPUTS");
    const fs::path vectors = argv[1], outputs = argv[2];
    fs::create_directories(outputs);
    const std::string text = read_file(vectors / "manifest.json");
    const Json manifest = Parser(text).parse();
    if (manifest.at("schema_version").number != 1) throw std::runtime_error("this program reads version 1");
    const Json& definition = manifest.at("definition");
    const std::string& name = definition.at("name").string;
    if (name != "gdn_decode_k_last" && name != "gdn_decode_k_first")
        throw std::runtime_error("this program has no " + name);
    const bool k_first = definition.at("conventions").at("state_layout").string == "k_first";
    for (const Json& item : manifest.at("workloads").array) {
        const auto axis = [&](const char* key) { return static_cast<size_t>(item.at("axes").at(key).number); };
        Call call{axis("batch_size"), axis("num_q_heads"), axis("num_k_heads"), axis("num_v_heads"),
                  axis("head_size"),  0,                   true,                k_first};
        for (const Json& scalar : item.at("scalars").array) {
            const Json& value = scalar.at("value");
            if (scalar.at("name").string == "scale") call.scale = static_cast<float>(value.number);
            if (scalar.at("name").string == "use_qk_l2norm") call.normalise = value.boolean;
        }
        const Tensors inputs = read_safetensors(vectors / item.at("file").string);
        write_safetensors(outputs / (item.at("workload").at("name").string + ".safetensors"), decode(call, inputs));
    }
    return 0;
} catch (const std::exception& error) {
    std::cerr << "decode: " << error.what() << "\n";
    return 1;
}
