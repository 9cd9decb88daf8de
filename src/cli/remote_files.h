// Objects in buckets and files of web servers, for who reads texts.
#pragma once

namespace ingot::cli {

/// From now on data/remote/files.h opens s3:// and https://.
void open_urls();

}  // namespace ingot::cli
