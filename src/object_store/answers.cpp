#include "object_store/answers.h"

#include <ctime>
#include <pugixml.hpp>

#include "object_store/encoding.h"

namespace ingot::object_store {
namespace {

constexpr size_t kLongestKey = 1024, kLongestId = 4096;  // of S3, and far beyond what stores use

// The root element of a document, which must have this name.
pugi::xml_node root_of(pugi::xml_document& document, std::string_view body, const char* name) {
  const auto result = document.load_buffer(body.data(), body.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!result)
    throw BrokenAnswer(fmt::format("the answer is no XML ({} at byte {}): {}", result.description(), result.offset, printable(body)));
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) != name)
    throw BrokenAnswer(fmt::format("the answer is <{}> instead of <{}>", printable(root.name()), name));
  return root;
}

std::string text(const pugi::xml_node& node, const char* child) { return node.child(child).text().get(); }

std::string needed(const pugi::xml_node& node, const char* child, size_t limit) {
  std::string value = text(node, child);
  if (value.empty() || value.size() > limit)
    throw BrokenAnswer(fmt::format("the answer's <{}> has {} <{}>", node.name(), value.empty() ? "no" : "too long a", child));
  return value;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "&#" + std::to_string(static_cast<int>(c)) + ";";
        } else {
          out += c;
        }
    }
  }
  return out;
}

}  // namespace

ErrorAnswer parse_error(std::string_view body) {
  pugi::xml_document document;
  if (!document.load_buffer(body.data(), body.size(), pugi::parse_default, pugi::encoding_utf8)) return {};
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) != "Error") return {};
  return {printable(text(root, "Code")), printable(text(root, "Message")), printable(text(root, "Region"))};
}

ListAnswer parse_list(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = root_of(document, body, "ListBucketResult");
  const bool encoded = text(root, "EncodingType") == "url";
  const auto name = [&](const pugi::xml_node& node, const char* child) {
    std::string key = needed(node, child, 3 * kLongestKey);
    if (encoded) key = percent_decode(key);
    if (key.size() > kLongestKey) throw BrokenAnswer("the listing holds a key of more than 1024 bytes");
    return key;
  };
  ListAnswer answer;
  for (const pugi::xml_node& entry : root.children("Contents")) {
    ObjectInfo object{name(entry, "Key"), parse_count(text(entry, "Size")), unquoted(text(entry, "ETag")),
                      parse_time(text(entry, "LastModified"))};
    if (object.size_bytes < 0) throw BrokenAnswer(fmt::format("the listing has no valid size for '{}'", printable(object.key)));
    answer.objects.push_back(std::move(object));
  }
  for (const pugi::xml_node& entry : root.children("CommonPrefixes")) answer.folders.push_back(name(entry, "Prefix"));
  const std::string truncated = text(root, "IsTruncated");
  if (truncated != "true" && truncated != "false" && !truncated.empty())
    throw BrokenAnswer("the listing does not say whether it is complete");
  if (truncated == "true") answer.next_token = needed(root, "NextContinuationToken", kLongestId);
  return answer;
}

UploadsAnswer parse_uploads(std::string_view body) {
  pugi::xml_document document;
  const pugi::xml_node root = root_of(document, body, "ListMultipartUploadsResult");
  const bool encoded = text(root, "EncodingType") == "url";
  const auto name = [&](const std::string& key) { return encoded ? percent_decode(key) : key; };
  UploadsAnswer answer;
  for (const pugi::xml_node& entry : root.children("Upload"))
    answer.uploads.push_back(
        {name(needed(entry, "Key", 3 * kLongestKey)), needed(entry, "UploadId", kLongestId), parse_time(text(entry, "Initiated"))});
  if (text(root, "IsTruncated") == "true") {
    answer.next_key = name(needed(root, "NextKeyMarker", 3 * kLongestKey));
    answer.next_id = text(root, "NextUploadIdMarker");
  }
  return answer;
}

std::string parse_upload_id(std::string_view body) {
  pugi::xml_document document;
  return needed(root_of(document, body, "InitiateMultipartUploadResult"), "UploadId", kLongestId);
}

std::string parse_completed(std::string_view body) {
  pugi::xml_document document;
  return unquoted(needed(root_of(document, body, "CompleteMultipartUploadResult"), "ETag", kLongestId));
}

std::vector<DeleteFailure> parse_deleted(std::string_view body) {
  pugi::xml_document document;
  std::vector<DeleteFailure> failures;
  for (const pugi::xml_node& entry : root_of(document, body, "DeleteResult").children("Error"))
    failures.push_back({text(entry, "Key"), printable(text(entry, "Code")), printable(text(entry, "Message"))});
  return failures;
}

std::string encode_complete(const std::vector<Part>& parts) {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (const Part& part : parts) {
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag>", part.number, escaped(part.etag));
    if (!part.sha256.empty()) body += "<ChecksumSHA256>" + part.sha256 + "</ChecksumSHA256>";
    body += "</Part>";
  }
  return body + "</CompleteMultipartUpload>";
}

std::string encode_delete(const std::vector<std::string>& keys) {
  std::string body = "<Delete xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Quiet>true</Quiet>";
  for (const std::string& key : keys) body += "<Object><Key>" + escaped(key) + "</Key></Object>";
  return body + "</Delete>";
}

int64_t parse_time(std::string_view text) {
  const std::string copy(text);
  for (const char* form : {"%Y-%m-%dT%H:%M:%S", "%a, %d %b %Y %H:%M:%S GMT"}) {
    std::tm parts{};
    if (::strptime(copy.c_str(), form, &parts)) return ::timegm(&parts);
  }
  return 0;
}

}  // namespace ingot::object_store
