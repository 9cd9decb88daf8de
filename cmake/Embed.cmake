# Writes a C++ file that holds other files byte for byte:
#   cmake -DINTO=out.cpp -DHEADER=folder/what.h -DNAMESPACE=a::b "-DFILES=kName=path;kOther=path" -P Embed.cmake
# The header declares each name as extern const std::string_view.
cmake_minimum_required(VERSION 3.25)
set(text "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\n")
foreach(entry ${FILES})
  string(REGEX MATCH "^([^=]+)=(.+)$" found "${entry}")
  set(name "${CMAKE_MATCH_1}")
  file(READ "${CMAKE_MATCH_2}" bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND text "static constexpr char ${name}Bytes[] = {${bytes}};\nconst std::string_view ${name}(${name}Bytes, sizeof(${name}Bytes));\n")
endforeach()
file(WRITE "${INTO}" "${text}}  // namespace ${NAMESPACE}\n")
