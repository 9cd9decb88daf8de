// Addresses and numbers of people by their form, each replaced by its kind: <EMAIL>. A form is no proof: numbers with check digits are
// checked, and all others may be something else, or be written in a way that no pattern knows.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/text.h"
#include "data/hugging_face/regex.h"
#include "data/process/steps.h"

namespace ingot::data::process {
namespace {

std::string digits_of(std::string_view text) {
  std::string digits;
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits), [](char c) { return c >= '0' && c <= '9'; });
  return digits;
}

// IPv4 of the public net: those of private ones, of the machine itself and of groups say nothing of a person.
bool is_public_address(std::string_view text) {
  const auto parts = base::split(std::string(text), '.');
  int numbers[4];
  for (size_t i = 0; i < 4; ++i) {
    if (parts[i].size() > 1 && parts[i][0] == '0') return false;
    numbers[i] = std::stoi(parts[i]);
    if (numbers[i] > 255) return false;
  }
  const int a = numbers[0], b = numbers[1];
  return a != 0 && a != 10 && a != 127 && a < 224 && !(a == 192 && b == 168) && !(a == 172 && b >= 16 && b < 32) && !(a == 169 && b == 254);
}

bool is_phone_number(std::string_view text) {
  const auto digits = digits_of(text).size();
  return digits >= 8 && digits <= 15;
}

// Luhn's check digit (ISO/IEC 7812-1).
bool is_card_number(std::string_view text) {
  const auto digits = digits_of(text);
  if (digits.size() < 13 || digits.size() > 19 || digits.find_first_not_of(digits[0]) == std::string::npos) return false;
  int sum = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    int digit = digits[digits.size() - 1 - i] - '0';
    if (i % 2 == 1) digit = digit > 4 ? 2 * digit - 9 : 2 * digit;
    sum += digit;
  }
  return sum % 10 == 0;
}

// ISO 13616: modulo 97.
bool is_iban(std::string_view text) {
  std::string plain;
  std::copy_if(text.begin(), text.end(), std::back_inserter(plain), [](char c) { return c != ' '; });
  if (plain.size() < 15 || plain.size() > 34) return false;
  int rest = 0;
  for (const char c : plain.substr(4) + plain.substr(0, 4))
    rest = std::isdigit(static_cast<unsigned char>(c)) ? (10 * rest + (c - '0')) % 97 : (100 * rest + (c - 'A' + 10)) % 97;
  return rest == 1;
}

struct Form {
  const char *name, *pattern, *mask;
  bool (*is_one)(std::string_view);  // null: the pattern is all
};
constexpr Form kForms[] = {
    {"email",
     R"((?<![A-Za-z0-9._%+-])[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![A-Za-z0-9-]|[.A-Za-z0-9-]{0,64}:[A-Za-z0-9]))",
     "<EMAIL>", nullptr},
    {"iban", R"((?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9]))", "<IBAN>", &is_iban},
    {"card", R"((?<![0-9.-])[0-9](?:[ -]?[0-9]){12,18}(?![0-9]))", "<CARD>", &is_card_number},
    {"ip", R"((?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?!\.?[0-9]))", "<IP>", &is_public_address},
    {"phone",
     R"((?<![0-9A-Za-z])(?:\+[0-9]{1,3}[ .-]?(?:\(?[0-9]{1,4}\)?[ .-]?){1,5}[0-9]{2,4}|(?:1[ .-])?(?:\([0-9]{3}\) ?|[0-9]{3}-)[0-9]{3}[ .-][0-9]{4})(?![0-9]))",
     "<PHONE>", &is_phone_number},
};

// Of what a pattern has found the longest beginning that is one: what follows a number may look like more of it. 0: none.
size_t length_of_one(const Form& form, std::string_view found) {
  if (!form.is_one || form.is_one(found)) return found.size();
  for (size_t end = found.size() - 1; end > 0; --end)
    if ((found[end] == ' ' || found[end] == '-') && form.is_one(found.substr(0, end))) return end;
  return 0;
}

class PersonalData : public Filter {
 public:
  explicit PersonalData(const StepConfig& config) {
    std::vector<std::string> names;
    for (const auto& form : kForms) names.emplace_back(form.name);
    for (const auto& wanted : config.mask)
      if (std::find(names.begin(), names.end(), wanted) == names.end())
        throw base::ConfigError("{}: mask has {}, and there is {}", config.name, wanted, base::join(names, ", "));
    for (const auto& form : kForms)
      if (config.mask.empty() || std::find(config.mask.begin(), config.mask.end(), form.name) != config.mask.end())
        forms_.push_back({&form, Regex(form.pattern)});
  }

  bool apply(Document& document, Tally& tally) const override {
    mask(document.text, tally);
    mask_all(document.members, tally);
    return true;
  }

 private:
  void mask(std::string& text, Tally& tally) const {
    for (const auto& [form, regex] : forms_) {
      std::string masked;
      size_t from = 0;
      int64_t times = 0;
      for (const auto& match : regex.find_all(text)) {
        const size_t length = length_of_one(*form, std::string_view(text).substr(match.begin, match.end - match.begin));
        if (length == 0) continue;
        masked.append(text, from, match.begin - from).append(form->mask);
        from = match.begin + length;
        ++times;
      }
      if (times == 0) continue;
      masked.append(text, from);
      text = std::move(masked);
      tally.count(std::string("masked: ") + form->name, times);
    }
  }
  // Of the other members of its line every text.
  void mask_all(nlohmann::ordered_json& value, Tally& tally) const {
    if (value.is_string()) return mask(value.get_ref<std::string&>(), tally);
    if (value.is_structured())
      for (auto& inner : value) mask_all(inner, tally);
  }

  std::vector<std::pair<const Form*, Regex>> forms_;
};

}  // namespace

std::unique_ptr<Filter> make_personal_data(const StepConfig& config) { return std::make_unique<PersonalData>(config); }

}  // namespace ingot::data::process
